"""The operations of /admin/v1, as the OpenAPI document has them, without what a command line does not need.

`operations.json` is made of the document by `scripts/command_operations.py` (`make docs`), so that a command that calls
a gateway elsewhere imports none of its code.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

Place: TypeAlias = Literal["path", "query", "body"]
FILE = Path(__file__).with_name("operations.json")


class Field(Struct, frozen=True, omit_defaults=True):
    """A parameter in the path or query, or a field of the body. `items`: the type of each, in an array."""

    name: str
    place: Place
    type: str
    items: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False
    most: int = 0
    about: str = ""


class Operation(Struct, frozen=True, omit_defaults=True):
    """An operation. `routes`: MODULE:FUNCTION that makes its route, beside others, for a gateway."""

    method: str
    path: str
    routes: str
    fields: tuple[Field, ...] = ()

    def field(self, name: str) -> Field | None:
        """The field of this name."""
        return next((field for field in self.fields if field.name == name), None)


@cache
def operations() -> dict[str, Operation]:
    """All operations by id, without `admin_` before it."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Operation])
