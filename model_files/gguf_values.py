"""Reads values from the bytes of a GGUF file, one after the other: numbers, texts, arrays.

The file is foreign input: every length is compared with the file's size or with a bound before anything is allocated.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

_MOST_STRINGS = 1 << 22
"""Strings in all arrays of a file: each is visited to find the next entry."""
_MOST_NUMBERS = 1 << 22
"""Numbers of an array that are decoded."""
_LONGEST_TEXT = 1 << 24
_WINDOW = 1 << 18
"""Bytes of a file that are read at once."""
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""type of a value -> its form in `struct`"""
_FLOAT, _STRING, _ARRAY = 6, 8, 9


class GgufError(Exception):
    """A GGUF file is damaged, contradicts itself or has what is not supported. The message names the file and what."""


@dataclass(frozen=True)
class Array:
    """An array that is not decoded yet: where its elements begin."""

    type: int
    count: int
    start: int


Value: TypeAlias = int | float | bool | str | Array


class FileBytes:
    """The bytes of a file, which are read when they are asked for. They are not mapped: a file that becomes shorter
    meanwhile is an error then, and no signal that ends the process. Raises GgufError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._window, self._begin = b"", 0
        try:
            self._file = path.open("rb", buffering=0)
            self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise GgufError(f"{path}: cannot be read: {error.strerror}") from error

    def read(self, at: int, count: int) -> bytes:
        """`count` bytes from `at` on."""
        if count > self.size - at:
            raise GgufError(f"{self._path}: has changed while it was read")
        begin = at - self._begin
        if not 0 <= begin <= len(self._window) - count:
            if count > _WINDOW:
                return self._read(at, count)
            self._window, self._begin, begin = self._read(at, min(_WINDOW, self.size - at)), at, 0
        return self._window[begin : begin + count]

    def _read(self, at: int, count: int) -> bytes:
        into = bytearray(count)
        view, got = memoryview(into), 0
        try:
            while got < count and (more := os.preadv(self._file.fileno(), [view[got:]], at + got)):
                got += more
        except OSError as error:
            raise GgufError(f"{self._path}: cannot be read: {error.strerror}") from error
        if got < count:
            raise GgufError(f"{self._path}: has become shorter than the {self.size} bytes that it had")
        return bytes(into)

    def close(self) -> None:
        self._file.close()


class Cursor:
    """Reads forward through the bytes of a file. Raises GgufError for what lies beyond their end."""

    def __init__(self, path: Path, data: FileBytes) -> None:
        self.path = path
        self.data = data
        self.at = 0
        self.size = data.size
        self._strings = 0

    def refuse(self, what: str) -> NoReturn:
        raise GgufError(f"{self.path}: {what}")

    def number(self, form: str, what: str) -> Any:
        size = struct.calcsize(f"<{form}")
        self.skip(size, what)
        return struct.unpack(f"<{form}", self.data.read(self.at - size, size))[0]

    def skip(self, count: int, what: str) -> None:
        if count > self.size - self.at:
            self.refuse(f"{what} reaches beyond the end of the file, at byte {self.at} of {self.size}")
        self.at += count

    def count(self, what: str, most: int) -> int:
        count: int = self.number("Q", what)
        if count > most:
            self.refuse(f"{what} is {count}, more than {most}")
        return count

    def text(self, what: str, longest: int) -> str:
        length = self.count(f"the length of {what}", longest)
        self.skip(length, what)
        return self._decoded(self.at - length, length, what)

    def value(self, type_: int, key: str) -> Value:
        """The value of this type of the entry `key`."""
        if type_ == _STRING:
            return self.text(key, _LONGEST_TEXT)
        if type_ == _ARRAY:
            return self._array(key)
        if type_ not in _NUMBERS:
            self.refuse(f"{key} has values of type {type_}, which GGUF does not have")
        value: int | float | bool = self.number(_NUMBERS[type_], key)
        return shortest(value) if type_ == _FLOAT and isinstance(value, float) else value

    def _array(self, key: str) -> Array:
        inner, count = self.number("I", key), self.number("Q", key)
        if inner in _NUMBERS:
            array = Array(inner, count, self.at)
            self.skip(count * struct.calcsize(f"<{_NUMBERS[inner]}"), key)
            return array
        if inner != _STRING:
            self.refuse(f"{key} is an array of values of type {inner}, which is not supported")
        self._strings += count
        if self._strings > _MOST_STRINGS or count * 8 > self.size - self.at:
            self.refuse(f"{key} has {count} strings, more than the file or this reader holds")
        array = Array(inner, count, self.at)
        for _ in range(count):
            self.skip(self.number("Q", key), key)
        return array

    def elements(self, array: Array, key: str) -> list[Any]:
        """The elements of an array that was read before."""
        if array.type != _STRING:
            if array.count > _MOST_NUMBERS:
                self.refuse(f"{key} has {array.count} numbers, more than {_MOST_NUMBERS}")
            form = f"<{array.count}{_NUMBERS[array.type]}"
            return list(struct.unpack(form, self.data.read(array.start, struct.calcsize(form))))
        texts, at = [], array.start
        for _ in range(array.count):
            (length,) = struct.unpack("<Q", self.data.read(at, 8))
            texts.append(self._decoded(at + 8, length, key))
            at += 8 + length
        return texts

    def _decoded(self, at: int, length: int, what: str) -> str:
        try:
            return self.data.read(at, length).decode()
        except UnicodeDecodeError:
            self.refuse(f"{what} is not in UTF-8")


def shortest(value: float) -> float:
    """The number of the fewest digits that 32 bits hold as this one: 1e-05 is stored as 9.9999997e-06."""
    stored = struct.pack("<f", value)
    for digits in range(1, 9):
        shorter = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", shorter) == stored:
                return shorter
        except OverflowError:  # rounded up beyond the largest of 32 bits
            continue
    return value
