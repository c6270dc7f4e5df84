"""A model that is split over several GGUF files.

The names end with ``-00001-of-00003.gguf``. Each file is a whole GGUF file with some of the tensors
and the keys ``split.no`` (from 0), ``split.count`` and ``split.tensors.count`` (of all files); the
first one also has the model's metadata. This is what llama.cpp's ``gguf-split`` and the gguf
library write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models.gguf.header import GgufHeader, TensorInfo, read_header

__all__ = ["part_paths", "read_parts"]

NAME = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.gguf)", re.IGNORECASE
)


def part_paths(path: Path) -> list[Path]:
    """All files of the model that a file belongs to, first part first; by their names alone.

    Args:
        path: a whole model, or any of its parts.

    Raises:
        ModelUnavailable: a part is missing.
    """
    match = NAME.fullmatch(path.name)
    if match is None or (count := int(match["count"])) < 2:
        return [path]
    if not 1 <= int(match["number"]) <= count:
        _refuse(path, f"its name says part {int(match['number'])} of {count}")
    paths = [
        path.with_name(f"{match['stem']}-{number:05}-of-{count:05}{match['end']}")
        for number in range(1, count + 1)
    ]
    for number, part in enumerate(paths, start=1):
        if not part.is_file():
            raise ModelUnavailable(
                f"Part {number} of {count} is missing: {part}; was the model fetched completely?"
            )
    return paths


def read_parts(paths: Sequence[Path]) -> GgufHeader:
    """Read the headers of all files of a model as if they were one.

    Args:
        paths: what ``part_paths`` returned.

    Returns:
        The metadata of the first file, and the tensors of all; ``TensorInfo.part`` is the place of
        a tensor's file in ``paths``.

    Raises:
        ModelUnavailable: a file is damaged, or they do not belong together.
    """
    headers = [read_header(path) for path in paths]
    tensors: dict[str, TensorInfo] = {}
    for number, (path, header) in enumerate(zip(paths, headers, strict=True)):
        _check(path, header, number, len(paths))
        for name, info in header.tensors.items():
            if name in tensors:
                _refuse(path, f"{paths[tensors[name].part].name} has its tensor {name!r} too")
            tensors[name] = msgspec.structs.replace(info, part=number)
    for path, header in zip(paths, headers, strict=True):
        total = _number(path, header, "split.tensors.count", len(tensors))
        if total != len(tensors):
            _refuse(path, f"it says that all parts have {total} tensors, they have {len(tensors)}")
    return GgufHeader(headers[0].metadata, tensors)


def _check(path: Path, header: GgufHeader, number: int, count: int) -> None:
    """Hold what a header says of its file against the file's name."""
    says, place = _number(path, header, "split.count", 1), _number(path, header, "split.no", 0)
    if count == 1 and says > 1:
        _refuse(
            path,
            f"it is one of {says} parts, which are found by their names; "
            f"they must end with '-00001-of-{says:05}.gguf' and so on",
        )
    if count > 1 and says != count:
        _refuse(path, f"its name says one of {count} parts, its header one of {says}")
    if count > 1 and place != number:
        _refuse(path, f"its name says part {number + 1} of {count}, its header part {place + 1}")


def _number(path: Path, header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if not isinstance(value, int):
        _refuse(path, f"{key} is not a whole number")
    return value


def _refuse(path: Path, why: str) -> NoReturn:
    raise ModelUnavailable(f"{path} cannot be used: {why}.")
