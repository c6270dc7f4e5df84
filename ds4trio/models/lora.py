"""Low-rank adapters (LoRA, arXiv:2106.09685): small changes to a model's products, in their files.

Two kinds of files are read: a folder as the peft library writes it (``adapter_config.json`` and
``adapter_model.safetensors``), and a GGUF file as llama.cpp's converter does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models.config import ModelConfig, family_of
from ds4trio.models.damaged import BAD_JSON
from ds4trio.models.fields import FieldReader
from ds4trio.models.gguf.header import read_header
from ds4trio.models.gguf.weights import GgufWeights
from ds4trio.models.safetensors import read_tensors
from ds4trio.models.sources import Source
from ds4trio.models.tensors import tensor_shapes

if TYPE_CHECKING:
    import torch

__all__ = ["Adapter", "LowRankPair", "expect_adapters", "open_adapter"]

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

PEFT_PREFIX = re.compile(r"^base_model\.model\.")
ADAPTABLE = re.compile(
    r"model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)\.weight"
)
"""The products that an adapter may change."""


PLAIN_NAME = re.compile(r"[\w.]+")


class LowRankPair(msgspec.Struct, frozen=True):
    """``W + up @ down`` in place of ``W``.

    Attributes:
        down: float32 [rank, inputs].
        up: float32 [outputs, rank]; the adapter's scale is part of it.
    """

    down: torch.Tensor
    up: torch.Tensor


class Adapter(msgspec.Struct, frozen=True):
    """An adapter that is open.

    Attributes:
        name: what clients call the model with it.
        pairs: by the decoder's names of products, less ``.weight``.
    """

    name: str
    pairs: Mapping[str, LowRankPair]


def open_adapter(name: str, path: Path, config: ModelConfig) -> Adapter:
    """Read an adapter, and hold it against the model that it is for.

    Args:
        name: what clients will call the model with it.
        path: a folder, or a GGUF file.
        config: of the model.

    Raises:
        ModelUnavailable: it cannot be read, is for another model, or changes something that cannot
            be changed per request.
    """
    if config.latent is not None or config.compressed is not None:
        _refuse(path, "models of this kind cannot be changed per request")
    family = family_of(config)
    if path.is_dir():
        found = _from_folder(path)
        return _fitted(name, path, found, config, family.hf_source)
    if path.is_file():
        found = _from_gguf(path)
        return _fitted(name, path, found, config, family.gguf_source)
    raise _missing(path)


def expect_adapters(paths: Iterable[Path]) -> None:
    """Say at once that an adapter is not there, before anything is fetched or loaded.

    Raises:
        ModelUnavailable: there is nothing at one of the paths.
    """
    for path in paths:
        if not path.exists():
            raise _missing(path)


def _missing(path: Path) -> ModelUnavailable:
    return ModelUnavailable(
        f"--lora: there is no adapter {path}; it takes NAME=PATH of a folder or a GGUF file."
    )


Found = dict[str, LowRankPair]


def _fitted(
    name: str,
    path: Path,
    found: Found,
    config: ModelConfig,
    source_of: Callable[[ModelConfig, str], Source],
) -> Adapter:
    pairs: Found = {}
    used = set()
    for tensor, shape in tensor_shapes(config).items():
        if not ADAPTABLE.fullmatch(tensor):
            continue
        source = source_of(config, tensor)
        own = found.get(source.name.removesuffix(".weight"))
        if own is None:
            continue
        used.add(source.name.removesuffix(".weight"))
        up = source.rows_of(own.up)
        if (len(up), own.down.shape[1]) != shape:
            raise ModelUnavailable(
                f"The adapter {path} is for another model: {source.name!r} would be "
                f"{[len(up), own.down.shape[1]]} and is {list(shape)}."
            )
        pairs[tensor.removesuffix(".weight")] = LowRankPair(own.down, up)
    if other := sorted(found.keys() - used):
        raise ModelUnavailable(
            f"The adapter {path} changes {other[0]!r}, which this model has not or which cannot be "
            "changed per request; known: the products of attention and of dense MLPs."
        )
    return Adapter(name, pairs)


def _from_folder(folder: Path) -> Found:
    if not (folder / CONFIG).is_file():
        model = "; it is a model, not an adapter for one" * (folder / "config.json").is_file()
        _refuse(folder, f"it has no {CONFIG}{model}")
    config = _json(folder / CONFIG)
    read = FieldReader(config)
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        _refuse(folder, f"it is of the kind {kind!r}; known: LORA")
    for key in ("use_dora", "modules_to_save", "lora_bias", "alora_invocation_tokens"):
        if config.get(key):
            _refuse(folder, f"it uses {key}, which is not supported")
    if config.get("bias", "none") != "none":
        _refuse(folder, "it changes biases, which is not supported")
    alpha, rank = read.number("lora_alpha", 8.0), read.integer("r", 8)
    alphas = _pattern(folder, config, "alpha_pattern")
    ranks = _pattern(folder, config, "rank_pattern")

    def scale(module: str, own_rank: int) -> float:
        own = _matched(ranks, module, rank)
        if own != own_rank:
            _refuse(folder, f"{module!r} has rank {own_rank}, its config says {own:g}")
        whole = _matched(alphas, module, alpha)
        return whole / (own**0.5 if config.get("use_rslora") else own)

    return _paired(
        folder,
        {PEFT_PREFIX.sub("", name): value for name, value in _tensors(folder).items()},
        (".lora_A.weight", ".lora_B.weight"),
        scale,
    )


def _from_gguf(path: Path) -> Found:
    header = read_header(path)
    kind, form = (header.metadata.get(key) for key in ("general.type", "adapter.type"))
    if kind != "adapter" or form != "lora":
        _refuse(path, "it is not a LoRA adapter")
    alpha = FieldReader(header.metadata).number("adapter.lora.alpha", 0.0)
    weights = GgufWeights([path], header.tensors)
    return _paired(
        path,
        {name: weights[name] for name in header.tensors},
        (".weight.lora_a", ".weight.lora_b"),
        lambda _module, rank: alpha / rank if alpha else 1.0,
    )


def _paired(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    endings: tuple[str, str],
    scale: Callable[[str, int], float],
) -> Found:
    pairs: Found = {}
    down_ending, up_ending = endings
    for name, down in tensors.items():
        if not name.endswith(endings):
            _refuse(path, f"tensor {name!r} is not part of a low-rank change")
        module = name.removesuffix(down_ending)
        if module == name:
            if name.removesuffix(up_ending) + down_ending not in tensors:
                _refuse(path, f"{name!r} has no counterpart")
            continue
        up = tensors.get(module + up_ending)
        if up is None:
            _refuse(path, f"{name!r} has no counterpart")
        if down.ndim != 2 or up.ndim != 2 or len(down) != up.shape[1] or not len(down):
            _refuse(path, f"the shapes of {name!r} and its counterpart do not fit")
        for part in (down, up):
            if not part.is_floating_point() or part.itemsize < 2:  # two bytes hold numbers as such
                _refuse(path, f"{name!r} or its counterpart is of type {part.dtype}")
        pair = LowRankPair(down.float(), up.float() * scale(module, len(down)))
        if not (bool(pair.down.isfinite().all()) and bool(pair.up.isfinite().all())):
            _refuse(path, f"{name!r} or its counterpart has numbers that are not finite")
        pairs[module] = pair
    if not pairs:
        _refuse(path, "it changes nothing")
    return pairs


def _tensors(folder: Path) -> Mapping[str, torch.Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        _refuse(folder, f"it has no {WEIGHTS}")
    return read_tensors(path)


def _pattern(folder: Path, config: Mapping[str, Any], key: str) -> dict[str, float]:
    """Numbers by names of modules.

    Raises:
        ModelUnavailable: it is something else; or names are expressions, as peft allows, by which
            a module would silently get another scale here.
    """
    value = config.get(key) or {}
    if not isinstance(value, dict):
        _refuse(folder, f"{key} is not an object")
    for name in value:
        if not PLAIN_NAME.fullmatch(name):
            _refuse(folder, f"{key} has {name!r}, and only names are known there")
    return {name: FieldReader(value).number(name) for name in value}


def _matched(pattern: Mapping[str, float], module: str, default: float) -> float:
    """peft's rule: a key stands for modules whose names end with it."""
    for key, value in pattern.items():
        if module == key or module.endswith("." + key):
            return value
    return default


def _json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, *BAD_JSON) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error


def _refuse(path: Path, why: str) -> NoReturn:
    raise ModelUnavailable(f"--lora: the adapter {path} cannot be used: {why}.")
