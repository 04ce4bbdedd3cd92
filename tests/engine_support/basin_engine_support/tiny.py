"""`python -m basin_engine_support.tiny KIND FOLDER`: a tiny model whose random weights make every output token depend
on the whole context, so that one wrong page or state shows in the text.

Weights as large as `GAIN / sqrt(fan in)` keep the logits apart; the loaders' own dummy weights (1e-3) all but ignore
the prompt.
"""

import json
import math
import sys
from pathlib import Path

import torch

# Before the models' own imports, so those stand inside the functions.
import basin_engine_support.torchvision_cpu  # noqa: F401

GAIN = 1.6
FORGETTING = 0.01  # decay rate of a recurrent state: it outlives a hundred tokens
VOCABULARY = 1024


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            max_position_embeddings=8192,
        )
    )


def _gated_delta() -> torch.nn.Module:
    """One gated-delta layer and one of full attention: the interpreter takes a second for each of the former."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    return Qwen3NextForCausalLM(
        Qwen3NextConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            linear_num_key_heads=1,
            linear_num_value_heads=1,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
            vocab_size=VOCABULARY,
            max_position_embeddings=4096,
        )
    )


BUILDERS = {"llama": (_llama, torch.float32), "gated-delta": (_gated_delta, torch.float16)}


def build(kind: str, folder: Path) -> None:
    make, dtype = BUILDERS[kind]
    torch.manual_seed(7)
    model = make()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "conv1d" not in name:
                weight.normal_(0.0, GAIN / weight.shape[-1] ** 0.5)
            if name.endswith("A_log"):
                weight.fill_(math.log(FORGETTING))  # transformers' own draw forgets a state within a few tokens
    model.to(dtype).save_pretrained(folder)
    if kind == "gated-delta":
        # The engine's config class wants the interval that transformers derives the layer types from and drops.
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "full_attention_interval": 2}))


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]))
