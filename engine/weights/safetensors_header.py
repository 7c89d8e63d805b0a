"""Where the tensors of a safetensors file lie. The format: the README of huggingface/safetensors.

A file begins with the length of a header in JSON, which says type, shape and place of each tensor; their bytes follow,
one tensor after the other without gaps. The file is read and not mapped: one that becomes shorter meanwhile is an error
then, and no signal that ends the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta, Struct

from engine.errors import ModelError

_MOST_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_DTYPES: Mapping[str, torch.dtype] = {
    **{"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16},
    **{"U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64},
    **{"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu},
    **{"F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "C64": torch.complex64},
}
_Count = Annotated[int, Meta(ge=0)]


class _Entry(Struct):
    """A tensor in the header. `data_offsets`: its first byte, and the one after its last, from the header's end on."""

    dtype: str
    shape: list[_Count]
    data_offsets: tuple[_Count, _Count]


class StoredTensor(Struct, frozen=True):
    """A tensor that begins at byte `start` of a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name. Raises ModelError."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(_read(path, file.fileno(), 0, min(_LENGTH_BYTES, size)), "little")
            begin = _LENGTH_BYTES + length
            if size < _LENGTH_BYTES or length > _MOST_HEADER_BYTES or begin > size:
                raise _unreadable(path, f"its header would have {length} bytes of {size}")
            header = _read(path, file.fileno(), _LENGTH_BYTES, length)
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        entries.pop(_METADATA, None)
        stored = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in entries.items()}
    except OSError as error:
        raise _unreadable(path, error.strerror or "") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _unreadable(path, f"its header is damaged: {error}") from error
    end = begin
    tensors: dict[str, StoredTensor] = {}
    for name, entry in sorted(stored.items(), key=lambda each: each[1].data_offsets):
        first, after = entry.data_offsets
        dtype, nbytes = _DTYPES.get(entry.dtype), after - first
        if begin + first != end or nbytes < 0 or begin + after > size:
            raise _unreadable(
                path, f"tensor {name!r} lies from {first} to {after}, not behind the one before in the file"
            )
        if dtype is not None and math.prod(entry.shape) * dtype.itemsize != nbytes:
            raise _unreadable(path, f"tensor {name!r} of shape {entry.shape} in {entry.dtype} has {nbytes} bytes")
        tensors[name] = StoredTensor(entry.dtype, tuple(entry.shape), begin + first, nbytes)
        end = begin + after
    if end != size:
        raise _unreadable(path, f"it has {size} bytes, and its tensors end at {end}")
    return tensors


def read_tensor(path: Path, name: str, stored: StoredTensor) -> torch.Tensor:
    """A tensor, in memory of its own. Raises ModelError."""
    dtype = _DTYPES.get(stored.dtype)
    if dtype is None:
        raise ModelError(f"{path}: tensor {name} cannot be read: it is of type {stored.dtype}")
    if not stored.nbytes:
        return torch.empty(stored.shape, dtype=dtype)
    try:
        with path.open("rb", buffering=0) as file:
            content = _read(path, file.fileno(), stored.start, stored.nbytes)
    except OSError as error:
        raise ModelError(f"{path}: tensor {name} cannot be read: {error.strerror}") from error
    return torch.frombuffer(content, dtype=dtype).view(stored.shape)


def _read(path: Path, file: int, at: int, count: int) -> bytearray:
    into = bytearray(count)
    view, got = memoryview(into), 0
    while got < count and (more := os.preadv(file, [view[got:]], at + got)):
        got += more
    if got < count:
        raise ModelError(f"{path}: has become shorter: it ends before byte {at + count}")
    return into


def _unreadable(path: Path, why: Any) -> ModelError:
    return ModelError(f"{path}: is not a readable safetensors file: {why}")
