"""`.venv-vllm/bin/python tiny_vllm.py FOLDER`: configuration and tokenizer of a tiny model for vLLM's dummy weights.

A word of a prompt, `w` and a number below 1,000, is one token.
"""

import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config

SPECIAL = ("<unk>", "<s>", "</s>")


def main(folder: str) -> None:
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *(f"w{i}" for i in range(1000))))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
    ).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
