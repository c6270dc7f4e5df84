"""The header of a GGUF file: its metadata and where its tensors lie.

Implements the reading side of the GGUF specification, versions 2 and 3, little-endian
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Written against damaged and hostile
files: every length is checked against the file before it is used.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ds4trio.errors import ModelUnavailable
from ds4trio.models.mistaken import HEAD, mistaken_for

__all__ = ["GgufHeader", "TensorInfo", "read_header"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ARRAY_DEPTH = 4
MAX_DIMENSIONS = 4
MOST_VALUES = 1 << 24
"""Keys, tensors and members of arrays together. A file of gigabytes holds as many as a damaged
count says; the largest vocabularies have a quarter of a million tokens."""
LONGEST_STRING = 1 << 27
"""Bytes; a chat template or a whole ``tokenizer.json`` is far shorter."""

SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
STRING, ARRAY = 8, 9
U32, U64 = SCALARS[4], SCALARS[10]


class TensorInfo(msgspec.Struct, frozen=True):
    """Where one tensor lies.

    Attributes:
        name: as the file has it.
        kind: ggml's name of its element type, such as ``Q4_1``.
        shape: outermost dimension first, as torch has it (the file has the innermost first).
        offset, size: in bytes, from the beginning of the file.
        part: which file, where a model is split over several (see ``gguf_parts``).
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    size: int
    part: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class GgufHeader(msgspec.Struct, frozen=True):
    """Everything in a GGUF file but the weights themselves."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises:
        ModelUnavailable: not a GGUF file, a version or type that is not known, or a file shorter
            than its header says.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(data, path).header()
    except (OSError, ValueError) as error:
        if path.is_file() and not path.stat().st_size:  # which cannot be mapped
            raise ModelUnavailable(f"{path} cannot be read: {mistaken_for(b'', 'GGUF')}") from error
        raise ModelUnavailable(f"{path} cannot be read as a GGUF file: {error}.") from error


class _Parser:
    """Reads forward through the header."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.end = len(data)
        self.values = 0

    def header(self) -> GgufHeader:
        if self.data[:4] != MAGIC:
            head = bytes(self.data[:HEAD])
            self._refuse(mistaken_for(head, "GGUF") or "it does not begin with the GGUF magic")
        self.at = 4
        version = self._scalar(U32)
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS
            why = "it is big-endian" if swapped else f"version {version} is not known"
            self._refuse(f"{why}; known: versions 2 and 3, little-endian")
        tensor_count, key_count = self._scalar(U64), self._scalar(U64)
        self._count(tensor_count + key_count)
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self._string()
            if key in metadata:
                self._refuse(f"it has the key {key!r} twice")
            metadata[key] = self._value(self._scalar(U32), 0)
        return GgufHeader(metadata, self._tensors(tensor_count, metadata))

    def _tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
        # Imported here because a start from the cache does without this library, which takes
        # longer to import than to use.
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        found: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(count):
            name = self._string()
            dimensions = self._scalar(U32)
            if dimensions > MAX_DIMENSIONS:
                self._refuse(f"tensor {name!r} has {dimensions} dimensions")
            shape = tuple(self._scalar(U64) for _ in range(dimensions))[::-1]
            found.append((name, shape, self._scalar(U32), self._scalar(U64)))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            self._refuse(f"its alignment {alignment!r} is not a power of two")
        base = -(-self.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, type_id, offset in found:
            try:
                kind = GGMLQuantizationType(type_id)
            except ValueError:
                self._refuse(f"tensor {name!r} has the unknown type {type_id}")
            block, block_bytes = GGML_QUANT_SIZES[kind]
            if name in tensors:
                self._refuse(f"it has the tensor {name!r} twice")
            if (shape[-1] if shape else 1) % block:
                self._refuse(f"tensor {name!r} has rows that are no multiple of {block}")
            size = math.prod(shape) // block * block_bytes
            if base + offset + size > self.end:
                self._refuse(f"it ends before tensor {name!r} does; was it fetched completely?")
            tensors[name] = TensorInfo(name, kind.name, shape, base + offset, size)
        return tensors

    def _scalar(self, form: struct.Struct) -> Any:
        at, self.at = self.at, self.at + form.size
        if self.at > self.end:
            self._refuse("it ends inside its header; was it fetched completely?")
        return form.unpack_from(self.data, at)[0]

    def _string(self) -> str:
        length = self._scalar(U64)
        if length > self.end - self.at:
            self._refuse("it ends inside its header; was it fetched completely?")
        if length > LONGEST_STRING:
            self._refuse(f"it has a string of {length} bytes")
        at, self.at = self.at, self.at + length
        try:
            return self.data[at : self.at].decode("utf-8")
        except UnicodeDecodeError:
            self._refuse("it has a string that is not UTF-8")

    def _value(self, kind: int, depth: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array(depth)
        if kind not in SCALARS:
            self._refuse(f"it has a value of the unknown type {kind}")
        return self._scalar(SCALARS[kind])

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._scalar(U32), self._scalar(U64)
        if depth >= MAX_ARRAY_DEPTH:
            self._refuse("its arrays are nested too deeply")
        self._count(count)
        if kind not in SCALARS:
            return [self._value(kind, depth + 1) for _ in range(count)]
        size = SCALARS[kind].size
        if count > (self.end - self.at) // size:
            self._refuse("it ends inside its header; was it fetched completely?")
        at, self.at = self.at, self.at + count * size
        code = SCALARS[kind].format[-1]
        return list(struct.unpack_from(f"<{count}{code}", self.data, at))

    def _count(self, more: int) -> None:
        self.values += more
        if self.values > MOST_VALUES:
            self._refuse("its header has more values than any model's; is the file damaged?")

    def _refuse(self, why: str) -> NoReturn:
        stop = "" if why.endswith((".", "?")) else "."
        raise ModelUnavailable(f"{self.path} cannot be used: {why}{stop}")
