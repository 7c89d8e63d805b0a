"""Reads the header of a GGUF file: metadata, and where each tensor lies. The format: `docs/gguf.md` of ggml.

The file is foreign input. Every count, length, offset and shape is compared with the file's size or with a bound here
before anything is allocated by it, arrays are decoded when they are asked for, and tensors may not overlap: so a small
file cannot take much memory or time.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from model_files.gguf_values import Array, Cursor, FileBytes, GgufError, Value, shortest

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_ENTRIES = _MOST_TENSORS = 1 << 16
_MOST_FLOATS = 1 << 16
"""Numbers of a small tensor that are decoded."""
_LONGEST_NAME = 256
_MOST_DIMENSIONS, _LARGEST_DIMENSION = 4, 1 << 40
_LARGEST_ALIGNMENT = 1 << 20
_MOST_PARTS = 1 << 10
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class TensorType:
    """How elements are stored: `nbytes` for each block of `elements` in a row."""

    name: str
    elements: int
    nbytes: int


TENSOR_TYPES: Mapping[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}
_OTHER_TYPES = {
    **{9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"},
    **{20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"},
}
"""Types that are refused, by their names."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of `shape`, the outermost dimension first, that begins at byte `start` of `path`."""

    path: Path
    name: str
    type: TensorType
    shape: tuple[int, ...]
    start: int
    nbytes: int


class GgufFile:
    """One GGUF file, as a context manager: the values of its metadata, and its tensors by name. Raises GgufError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = FileBytes(path)
        self._cursor = Cursor(path, self._data)
        self.values: dict[str, Value] = {}
        self.tensors: dict[str, StoredTensor] = {}
        try:
            self._read_header()
        except BaseException:
            self._data.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.close()

    def elements(self, key: str) -> list[Any]:
        """The elements of the array `key`; empty if it is missing. Raises GgufError if it is no array."""
        array = self.values.get(key)
        if array is None:
            return []
        if not isinstance(array, Array):
            self._cursor.refuse(f"{key} is {array!r}, not an array")
        return self._cursor.elements(array, key)

    def floats(self, tensor: StoredTensor) -> list[float]:
        """The elements of a small tensor of type F32."""
        if tensor.type.name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MOST_FLOATS:
            self._cursor.refuse(
                f"tensor {tensor.name} is {tensor.type.name} of shape {list(tensor.shape)}, not up to {_MOST_FLOATS}"
                " numbers in F32"
            )
        content = self._data.read(tensor.start, tensor.nbytes)
        return [shortest(value) for value in struct.unpack(f"<{tensor.shape[0]}f", content)]

    def _read_header(self) -> None:
        cursor = self._cursor
        if cursor.size < len(_MAGIC):
            cursor.refuse(f"is not a GGUF file: it has fewer than {len(_MAGIC)} bytes")
        cursor.skip(len(_MAGIC), "the magic number")
        if self._data.read(0, len(_MAGIC)) != _MAGIC:
            cursor.refuse("is not a GGUF file: it does not begin with GGUF")
        version = cursor.number("I", "the version")
        if version not in _VERSIONS:
            big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            cursor.refuse(
                f"GGUF of version {version} is not supported"
                f" ({'it is big-endian; ' if big_endian else ''}little-endian 2 and 3 are)"
            )
        tensors = cursor.count("the number of tensors", _MOST_TENSORS)
        for _ in range(cursor.count("the number of metadata entries", _MOST_ENTRIES)):
            key = cursor.text("a metadata key", _LONGEST_NAME)
            if key in self.values:
                cursor.refuse(f"metadata {key} is there twice")
            self.values[key] = cursor.value(cursor.number("I", key), key)
        stored = [self._tensor(cursor) for _ in range(tensors)]
        begin = -(-cursor.at // self._alignment()) * self._alignment()
        self._place(stored, begin)

    def _alignment(self) -> int:
        alignment = self.values.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
            self._cursor.refuse(f"general.alignment is {alignment!r}, not a power of two up to {_LARGEST_ALIGNMENT}")
        return alignment

    def _tensor(self, cursor: Cursor) -> tuple[str, TensorType, tuple[int, ...], int]:
        name = cursor.text("a tensor's name", _LONGEST_NAME)
        what = f"tensor {name}"
        dimensions = cursor.number("I", what)
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            cursor.refuse(f"{what} has {dimensions} dimensions, not 1 to {_MOST_DIMENSIONS}")
        sizes = [cursor.number("Q", what) for _ in range(dimensions)]
        if not all(1 <= size <= _LARGEST_DIMENSION for size in sizes):
            cursor.refuse(f"{what} has the shape {sizes[::-1]}, which no tensor has")
        code, offset = cursor.number("I", what), cursor.number("Q", what)
        type_ = TENSOR_TYPES.get(code)
        if type_ is None:
            known = ", ".join(each.name for each in TENSOR_TYPES.values())
            cursor.refuse(f"{what} is of type {_OTHER_TYPES.get(code, code)}, which is not supported ({known} are)")
        if sizes[0] % type_.elements:
            cursor.refuse(f"{what} has rows of {sizes[0]} elements, which are no whole blocks of {type_.name}")
        return name, type_, tuple(reversed(sizes)), offset

    def _place(self, stored: list[tuple[str, TensorType, tuple[int, ...], int]], begin: int) -> None:
        """Check that each tensor lies within the file, by itself, and note where."""
        cursor, alignment, end = self._cursor, self._alignment(), begin
        for name, type_, shape, offset in sorted(stored, key=lambda each: each[3]):
            if name in self.tensors:
                cursor.refuse(f"tensor {name} is there twice")
            nbytes = type_.nbytes
            for size in (*shape[:-1], shape[-1] // type_.elements):
                nbytes *= size
            start = begin + offset
            if offset % alignment:
                cursor.refuse(f"tensor {name} begins at {offset}, which is not a multiple of {alignment}")
            if start < end:
                cursor.refuse(f"tensor {name} overlaps another one")
            if start + nbytes > cursor.size:
                cursor.refuse(
                    f"tensor {name} of shape {list(shape)} in {type_.name} takes {nbytes} bytes from {start} on, and"
                    f" the file has {cursor.size}"
                )
            self.tensors[name] = StoredTensor(self.path, name, type_, shape, start, nbytes)
            end = start + nbytes


class GgufModel:
    """A model in one GGUF file or in several parts, as a context manager. Its metadata is that of the first part."""

    def __init__(self, path: Path) -> None:
        with ExitStack() as opened:
            self.first = opened.enter_context(GgufFile(path))
            self.path = path
            self.tensors = dict(self.first.tensors)
            self.paths = [path]
            for part in self._other_parts():
                file = opened.enter_context(GgufFile(part))
                if file.values.get("split.no") != len(self.paths):
                    raise GgufError(f"{part}: split.no is {file.values.get('split.no')!r}, not {len(self.paths)}")
                if twice := self.tensors.keys() & file.tensors.keys():
                    raise GgufError(f"{part}: tensor {min(twice)} is in another part as well")
                self.tensors |= file.tensors
                self.paths.append(part)
            total = self.first.values.get("split.tensors.count", len(self.tensors))
            if total != len(self.tensors):
                raise GgufError(f"{path}: split.tensors.count is {total!r}, and its parts have {len(self.tensors)}")
            self._opened = opened.pop_all()
        self._decoded: dict[str, list[Any]] = {}

    def __enter__(self) -> GgufModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def values(self) -> Mapping[str, Value]:
        """The metadata. Arrays are not decoded: see `elements`."""
        return self.first.values

    def elements(self, key: str) -> list[Any]:
        """The elements of the array `key`; empty if it is missing. Raises GgufError if it is no array."""
        if key not in self._decoded:
            self._decoded[key] = self.first.elements(key)
        return self._decoded[key]

    def texts(self, key: str) -> list[str]:
        """The strings of the array `key`. Raises GgufError if it is no array of strings."""
        texts = self.elements(key)
        if not all(isinstance(text, str) for text in texts):
            raise GgufError(f"{self.path}: {key} is not an array of strings")
        return texts

    def numbers(self, key: str) -> list[float]:
        """The numbers of the array `key`. Raises GgufError if it is no array of numbers."""
        numbers = self.elements(key)
        if not all(isinstance(number, int | float) for number in numbers):
            raise GgufError(f"{self.path}: {key} is not an array of numbers")
        return numbers

    def floats(self, tensor: str) -> list[float]:
        """The elements of the small tensor of this name, which must be in the first part and of type F32."""
        if tensor not in self.first.tensors:
            raise GgufError(f"{self.path}: tensor {tensor} is in another part")
        return self.first.floats(self.first.tensors[tensor])

    def _other_parts(self) -> list[Path]:
        count = self.first.values.get("split.count", 1)
        if type(count) is not int or not 0 <= count <= _MOST_PARTS:
            raise GgufError(f"{self.path}: split.count is {count!r}, not a number of parts up to {_MOST_PARTS}")
        if count <= 1:
            return []
        name = _PART.fullmatch(self.path.name)
        if name is None or int(name["count"]) != count or int(name["number"]) != 1:
            raise GgufError(
                f"{self.path}: is a part of a model in {count} parts: give the first,"
                f" whose name ends with -00001-of-{count:05}.gguf"
            )
        return [self.path.with_name(f"{name['stem']}-{number:05}-of-{count:05}.gguf") for number in range(2, count + 1)]


def is_later_part(path: Path) -> bool:
    """Whether the name is that of a part of a model in several files, and not of its first part."""
    name = _PART.fullmatch(path.name)
    return name is not None and int(name["number"]) != 1


def model_name(path: Path) -> str:
    """The name of the model in a GGUF file: the file's, without its ending and the number of the part."""
    name = _PART.fullmatch(path.name)
    return name["stem"] if name is not None else path.name.removesuffix(".gguf")
