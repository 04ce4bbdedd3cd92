"""`<engine's python> tiny_model.py KIND FOLDER`: configuration and tokenizer of a tiny model for an engine's dummy
weights.

A character of ASCII is one token, so that replayed text has exact lengths; messages are joined with nothing between.
"""

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config

SPECIAL = ("<unk>", "<s>", "</s>")
SHAPES = {
    # 12.1M parameters, 2 KB of KV a token in bfloat16: on one core prompts cost as much against hits as on a GPU
    "qwen3-4x512": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "qwen3-2x128": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}
LONGEST = 16384


def main(kind: str, folder: str) -> None:
    if kind not in SHAPES:
        sys.exit(f"tiny model {kind!r}: there are {', '.join(SHAPES)}")
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *characters))}
    letters = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    shape = SHAPES[kind]
    Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=1024,
        max_position_embeddings=LONGEST,
        bos_token_id=1,
        eos_token_id=2,
        **shape,
    ).save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
