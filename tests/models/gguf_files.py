"""Writes GGUF files from a Hugging Face folder, the way llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

__all__ = ["NAMES", "add_value", "tokenizer_metadata", "write_gguf"]

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(
    path: Path,
    folder: Path,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    architecture: str = "llama",
    extra: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    tensors_a_part: int = 0,
) -> Path:
    """Write the model in ``folder`` to ``path``.

    ``kind`` is the type of the matrices; ``extra`` are further tensors, ``metadata`` further keys,
    ``without`` keys or tensors to leave out. With ``tensors_a_part`` the model is split, and the
    path of the first part is returned.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_a_part)
    numbers: dict[str, Any] = {
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": config["num_attention_heads"],
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.key_length": config["head_dim"],
        f"{architecture}.attention.value_length": config["head_dim"],
        f"{architecture}.rope.dimension_count": config["head_dim"],
        f"{architecture}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{architecture}.rope.freq_base": config["rope_parameters"]["rope_theta"],
        **tokenizer_metadata(folder),
        **(metadata or {}),
    }
    for key, value in numbers.items():
        if key not in without:
            add_value(writer, key, value)
    for name, tensor in load_file(folder / "model.safetensors").items():
        renamed, values = _convert(name, tensor, config)
        if renamed not in without:
            dense = values.ndim == 1 or values.shape[-1] % 32
            chosen = gguf.GGMLQuantizationType.F32 if dense else kind
            data = gguf.quants.quantize(values, chosen)
            writer.add_tensor(renamed, data, raw_dtype=chosen)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.is_file() else min(path.parent.glob(f"{path.stem}-*-of-*.gguf"))


def _convert(name: str, tensor: np.ndarray, config: Mapping[str, Any]) -> tuple[str, np.ndarray]:
    if name in OUTER:
        return OUTER[name], tensor
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    if part in ("self_attn.q_proj", "self_attn.k_proj"):
        heads = config["num_attention_heads" if "q_proj" in part else "num_key_value_heads"]
        # Written out row by row, on purpose not the way the loader undoes it.
        half = config["head_dim"] // 2
        order = [
            head * 2 * half + member * half + pair
            for head in range(heads)
            for pair in range(half)
            for member in range(2)
        ]
        tensor = tensor[order]
    return f"blk.{layer}.{NAMES[part]}.{kind}", tensor


def tokenizer_metadata(folder: Path) -> dict[str, Any]:
    """What a GGUF file says of the folder's tokenizer."""
    model = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    vocabulary: dict[str, int] = model["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"] for token in model["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": vocabulary[settings["bos_token"]],
        "tokenizer.ggml.eos_token_id": vocabulary[settings["eos_token"]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": settings["chat_template"],
    }


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a key of the metadata."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
