"""A random model of the llama family, small enough for every test.

``make_tiny_model(folder)`` writes a complete Hugging Face folder: config.json,
generation_config.json, model.safetensors (float32), tokenizer.json, tokenizer_config.json (bos and
eos, a ChatML template). The same seed gives the same files. What it says means nothing; that it
says the same every time is what tests lean on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

__all__ = [
    "CHATML",
    "CONTROL_TOKENS",
    "make_tiny_model",
    "make_tiny_tokenizer",
    "tiny_config",
    "write_tokenizer",
]

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2; the second is BOS, the third ends an answer."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

MERGES = (
    "Ġ t",
    "h e",
    "Ġt he",
    "i n",
    "e r",
    "Ġ a",
    "o n",
    "r e",
    "a t",
    "Ġ s",
    "Ġ w",
    "o r",
    "s t",
    "u s",
    "us er",
    "a n",
    "is t",
    "Ġ b",
    "e n",
    "Ġ f",
    "i s",
    "o u",
    "Ġa n",
    "Ġan d",
    "s y",
    "sy st",
    "syst e",
    "syste m",
    "l l",
    "i t",
)
"""Some English ones, those of the roles among them; the order is the priority."""


def tiny_config(**overrides: Any) -> dict[str, Any]:
    """The ``config.json`` of the tiny model, as transformers writes it, with keys replaced."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        **overrides,
    }


def make_tiny_model(
    folder: Path, *, seed: int = 0, scale: float = 0.1, ends: bool = True, **overrides: Any
) -> Path:
    """Write a random model into a folder.

    Args:
        folder: made if it does not exist.
        seed: of the weights.
        scale: standard deviation of the weights. The default makes greedy answers vary.
        ends: False keeps the control tokens from being drawn (with a large scale and a low
            temperature), so that answers go on to their limit.
        overrides: keys of ``config.json``, for instance ``attention_bias=True``,
            ``tie_word_embeddings=False`` or ``rope_parameters={...}``.

    Returns:
        The folder.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(**overrides)
    model = LlamaForCausalLM(LlamaConfig(**config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "norm" in name else 0.0
            parameter.normal_(centre, scale, generator=generator)
        if not ends:
            # Their logits are zero then, far below the largest of the others.
            model.lm_head.weight[: len(CONTROL_TOKENS)] = 0.0
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write the tiny tokenizer and its settings beside a model."""
    make_tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": CONTROL_TOKENS[1],
        "eos_token": CONTROL_TOKENS[2],
        "add_bos_token": False,
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def make_tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE: three control tokens, the 256 bytes, and ``MERGES``; 289 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*CONTROL_TOKENS, *alphabet, *merged]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[(first, second) for first, second in map(str.split, MERGES)],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in CONTROL_TOKENS])
    return tokenizer
