"""Typed access to a configuration's fields, with errors that name file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from model_files.gguf_values import GgufError
from model_files.model_documents import is_document, read_document

_LARGEST = 1 << 48
"""A larger number is a mistake and would overflow somewhere."""


class Fields:
    """The fields of one JSON object of `path`. Each method raises ModelError for a value of another type."""

    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self.path = path
        self.fields = fields

    def __contains__(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.fields.get(name) is not None

    def _get(self, name: str, default: Any) -> Any:
        value = self.fields.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, *, most: int = _LARGEST) -> int:
        """A positive integer."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{self.path}: field {name} must be a positive integer, is {value!r}")
        if value > most:
            raise ModelError(f"{self.path}: field {name} must be at most {most}, is {value}")
        return value

    def count(self, name: str, default: int = 0) -> int:
        """An integer from 0."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
            raise ModelError(f"{self.path}: field {name} must be an integer from 0 to {_LARGEST}, is {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _LARGEST:
            raise ModelError(f"{self.path}: field {name} must be a positive number up to {_LARGEST}, is {value!r}")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of positive numbers."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(
            isinstance(item, int | float) and 0 < item <= _LARGEST for item in value
        ):
            raise ModelError(f"{self.path}: field {name} must be a list of positive numbers, is {value!r}")
        return tuple(float(item) for item in value)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty if the field is missing."""
        value = self._get(name, [])
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise ModelError(f"{self.path}: field {name} must be a list of integers, is {value!r}")
        return tuple(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if the field is missing."""
        value = self._get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelError(f"{self.path}: field {name} must be a list of strings, is {value!r}")
        return tuple(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.path}: field {name} must be true or false, is {value!r}")
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise ModelError(f"{self.path}: field {name} must be a string, is {value!r}")
        return value

    def inner(self, name: str) -> Fields:
        """The object in this field; without fields if it is missing."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{self.path}: field {name} must be an object, is {value!r}")
        return Fields(self.path, value or {})


def has_fields(path: Path) -> bool:
    """Whether the model has the JSON document of this path. Raises ModelError."""
    try:
        return is_document(path)
    except GgufError as error:
        raise ModelError(str(error)) from error


def read_fields(path: Path) -> Fields:
    """The fields of a model's JSON document. Raises ModelError."""
    try:
        fields = json.loads(read_document(path))
    except GgufError as error:
        raise ModelError(str(error)) from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{path}: is not a JSON object")
    return Fields(path, fields)
