"""Which files of a hub repository are a model: all that is needed of it, and nothing else."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from ds4trio.errors import ModelUnavailable
from ds4trio.models.hub.names import HubName

__all__ = [
    "Choice",
    "GgufModel",
    "RepoFile",
    "choose",
    "gguf_models",
    "pick",
    "size_text",
    "written",
]

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json")
"""Files of which a folder has one at least."""

PREFERRED = "Q4_K_M"
"""What is taken of several quantisations when nobody says which."""

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_LABEL = re.compile(
    r"(?:^|(?<=[-._/]))"
    r"(?:UD-)?(?:I?Q\d_K(?:_[A-Z]{1,2})?|IQ\d_[A-Z]{1,3}|Q\d_\d(?:_\d+)*|TQ\d_\d|BF16|FP?16|FP?32"
    r"|MXFP4(?:_MOE)?|NVFP4)"
    r"(?=$|[-./])",
    re.IGNORECASE,
)
_NOT_A_MODEL = re.compile(r"(?:^|/)(?:mmproj|imatrix)|imatrix(?:\.gguf|$)", re.IGNORECASE)
"""Image encoders and calibration data, which are GGUF files too."""

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DESCRIBING = (".json", ".jinja")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".nemo", ".npz")
_SHOWN = 24
"""Files that a message lists at most."""


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository.

    Attributes:
        path: in the repository, with forward slashes.
        size: bytes.
        sha256: of its content, where the hub says it (for large files).
    """

    path: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF file, or the parts of one that was split.

    Attributes:
        files: in order.
        stem: the path without ending and number of a part.
        label: its quantisation as the name has it, such as ``Q4_K_M``; empty if it has none.
        parts: how many there should be.
    """

    files: tuple[RepoFile, ...]
    stem: str
    label: str
    parts: int

    @property
    def path(self) -> str:
        """Of the first part, which is what one opens."""
        return self.files[0].path

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def complete(self) -> bool:
        return len(self.files) == self.parts


@dataclass(frozen=True, slots=True)
class Choice:
    """The files that a model needs.

    Attributes:
        kind: ``gguf`` or ``folder``, a folder with config.json and safetensors.
        describing: small files that say what the model is, fetched first.
        weights: the others.
        path: the file to open, in the repository; empty for a folder.
    """

    kind: Literal["gguf", "folder"]
    describing: tuple[RepoFile, ...]
    weights: tuple[RepoFile, ...]
    path: str = ""

    @property
    def files(self) -> tuple[RepoFile, ...]:
        return self.describing + self.weights


def gguf_models(files: Iterable[RepoFile]) -> list[GgufModel]:
    """The GGUF models among files, ordered by size. Parts of one make one; image encoders none."""
    parts: defaultdict[tuple[str, int], dict[int, RepoFile]] = defaultdict(dict)
    for file in files:
        if not file.path.lower().endswith(".gguf") or _NOT_A_MODEL.search(file.path):
            continue
        stem = file.path[: -len(".gguf")]
        split = _PART.fullmatch(stem)
        if split is None:
            parts[stem, 1][1] = file
        else:
            parts[split["stem"], int(split["count"])][int(split["number"])] = file
    found = [
        GgufModel(tuple(numbered[at] for at in sorted(numbered)), stem, _label(stem), count)
        for (stem, count), numbered in parts.items()
    ]
    return sorted(found, key=lambda model: (model.size, model.path))


def _label(stem: str) -> str:
    name, folder = PurePosixPath(stem).name, str(PurePosixPath(stem).parent)
    for text in (name, folder):
        if found := _LABEL.findall(text):
            return str(found[-1]).upper()
    return ""


def choose(name: HubName, files: Sequence[RepoFile]) -> Choice:
    """Find the model that a name means.

    Args:
        name: with or without a pattern.
        files: all that the repository has at that revision.

    Raises:
        ModelUnavailable: none, or several; the message lists what there is.
    """
    if name.pattern is None and any(file.path == "config.json" for file in files):
        chosen = _folder(name, files)
        if chosen is not None:
            return chosen
    models = gguf_models(files)
    if not models:
        raise ModelUnavailable(_why_none(name, files))
    model = pick(name, models)
    if not model.complete:
        raise ModelUnavailable(
            f"{name.repo} has {len(model.files)} of the {model.parts} parts of {model.path} only."
        )
    return Choice("gguf", (), model.files, model.path)


def _folder(name: HubName, files: Sequence[RepoFile]) -> Choice | None:
    # Folders hold other formats; consolidated files hold the same weights a second time, and
    # adapters are no model of their own.
    root = {file.path: file for file in files if "/" not in file.path}
    tensors = [
        file
        for path, file in sorted(root.items())
        if path.endswith(".safetensors") and not path.startswith(("consolidated", "adapter_"))
    ]
    if _SINGLE in root:
        tensors = [root[_SINGLE]]
    elif _INDEX not in root:
        tensors = []
    if not tensors:
        return None
    describing = [
        file
        for path, file in sorted(root.items())
        if path.endswith(_DESCRIBING) or path in TOKENIZERS
    ]
    if _SINGLE in root:
        describing = [file for file in describing if file.path != _INDEX]
    return Choice("folder", tuple(describing), tuple(tensors))


def pick(name: HubName, models: Sequence[GgufModel]) -> GgufModel:
    """The one of a repository's GGUF models that a name means, whether or not all of it is there.

    Raises:
        ModelUnavailable: none, or several; the message lists what there is.
    """
    return _named(name, models) if name.pattern is not None else _preferred(name, models)


def _preferred(name: HubName, models: Sequence[GgufModel]) -> GgufModel:
    for wanted in (
        [model for model in models if model.label == PREFERRED],
        [model for model in models if model.label.endswith(PREFERRED)],
        models,
    ):
        if len(wanted) == 1:
            return wanted[0]
    raise ModelUnavailable(f"{name} has several GGUF models; name one: {_listed(name, models)}.")


def _named(name: HubName, models: Sequence[GgufModel]) -> GgufModel:
    given = name.pattern or ""
    pattern = given.lower()
    found = [model for model in models if any(file.path == given for file in model.files)]
    found = found or [model for model in models if _matches(pattern, model)]
    if len(found) > 1:
        found = [model for model in found if model.label.lower() == pattern] or found
    if len(found) == 1:
        return found[0]
    if not found:
        raise ModelUnavailable(
            f"{name.repo} has no GGUF model {name.pattern!r}; it has {_listed(name, models)}."
        )
    raise ModelUnavailable(f"{name} are several GGUF models; name one: {_listed(name, found)}.")


def _matches(pattern: str, model: GgufModel) -> bool:
    """Whether a pattern, in lower case, means a model: by path, by shell pattern, or by a whole
    word of its path such as the quantisation."""
    paths = [file.path.lower() for file in model.files]
    either = [*paths, *(PurePosixPath(path).name for path in paths)]
    if pattern in either:
        return True
    if any(sign in pattern for sign in "*?["):
        return any(fnmatch.fnmatchcase(path, pattern) for path in either)
    word = rf"(?:^|[-._/]){re.escape(pattern)}(?:$|[-./])"
    return re.search(word, model.stem.lower()) is not None


def _listed(name: HubName, models: Sequence[GgufModel]) -> str:
    shown = [
        f"{written(name, model, models)} ({size_text(model.size)})" for model in models[:_SHOWN]
    ]
    more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
    return ", ".join(shown) + more


def written(name: HubName, model: GgufModel, models: Sequence[GgufModel]) -> str:
    """How one writes a GGUF model of a repository, so that it means none of the others there."""
    alike = [other for other in models if _matches(model.label.lower(), other)]
    exact = [other for other in alike if other.label == model.label]
    short = bool(model.label) and exact == [model]
    return str(HubName(name.repo, name.revision, model.label if short else model.path))


def _why_none(name: HubName, files: Sequence[RepoFile]) -> str:
    paths = {file.path for file in files}
    if name.pattern is not None and any(path.endswith(".safetensors") for path in paths):
        return (
            f"{name.repo} has no GGUF files, of which {name.pattern!r} could be one; its "
            f"safetensors are {HubName(name.repo, name.revision)}."
        )
    if "adapter_config.json" in paths:
        return f"{name.repo} is an adapter for another model, which cannot be served by itself."
    other = sorted(path for path in paths if path.endswith(_OTHER_WEIGHTS))
    if other:
        return (
            f"{name.repo} has its weights only as {other[0]}; safetensors and GGUF can be read. "
            "Look for a conversion of it."
        )
    if any(path.endswith(".safetensors") for path in paths):
        return (
            f"{name.repo} has safetensors, but not as transformers keeps a model: config.json with "
            f"{_SINGLE} or {_INDEX}."
        )
    return f"{name.repo} has no model: neither safetensors nor GGUF files."


def size_text(size: int) -> str:
    """Bytes for people, in powers of 1000 as disks are sold: ``3.2 GB``."""
    number = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return (
                f"{number:.0f} {unit}" if unit == "B" or number >= 99.95 else f"{number:.1f} {unit}"
            )
        number /= 1000
    return f"{number:.1f} TB"
