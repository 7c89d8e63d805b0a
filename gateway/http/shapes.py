"""What bodies and answers are made of: pages of lists; amounts, instants and ids, which are texts in JSON.

`show` makes an answer of a row: what has another form in JSON gets it by the type of the answer's field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from billing.calendar import format_instant, parse_instant
from billing.money import InvalidMoney, format_pico, parse_amount
from gateway.errors import InvalidField
from storage.database.base import to_instant
from storage.database.public_ids import public_id

Answer = TypeVar("Answer", bound=Struct)
Item = TypeVar("Item")
Row = TypeVar("Row")


class Pico(int):
    """An amount in pico-units; in JSON a decimal string."""


class Instant(int):
    """Microseconds since the Unix epoch; in JSON an RFC 3339 timestamp."""


class PublicId(str):
    """The id of an object as everybody outside sees it. `kind`: of the object; see `storage.database.public_ids`."""

    kind: ClassVar[str] = ""

    @classmethod
    def of(cls, identity: UUID) -> Self:
        """The id of the object that we know by this."""
        return cls(public_id(cls.kind, identity))


class BudgetId(PublicId):
    kind = "budget"


class TenantId(PublicId):
    kind = "tenant"


class ProjectId(PublicId):
    kind = "project"


class InvoiceId(PublicId):
    kind = "invoice"


class UserId(PublicId):
    kind = "user"


class SessionId(PublicId):
    kind = "session"


class InvitationId(PublicId):
    kind = "invitation"


class InvalidAmount(ValueError):
    """An amount that is none."""

    code = "invalid_amount"


class PageQuery(Struct, frozen=True):
    """Which page of a list is asked for. `after`: the id of the last object of the page before."""

    limit: int
    after: str | None

    def rest(
        self, rows: Sequence[Row], id_of: Callable[[Row], Any], read: Callable[[str], Any], what: str
    ) -> Sequence[Row]:
        """The rows behind `after`, of a list that is whole. Raises InvalidField if none has this id."""
        if self.after is None:
            return rows
        last = read(self.after)
        for place, row in enumerate(rows, 1):
            if id_of(row) == last:
                return rows[place:]
        raise InvalidField("after", f"there is no such {what}")


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """A page of a list. `has_more`: there are more objects behind it."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool

    @classmethod
    def of(cls, objects: Sequence[Item], limit: int) -> Self:
        """The page of the first `limit` objects, of at least one more if there are more."""
        return cls(data=list(objects[:limit]), has_more=len(objects) > limit)


def show(kind: type[Answer], row: object, /, **others: Any) -> Answer:
    """An answer made of a row: its fields by their names, and others in place of these or beside them."""
    names = [name for name in kind.__struct_fields__ if name in others or (name != "object" and hasattr(row, name))]
    values = {name: others[name] if name in others else getattr(row, name) for name in names}
    return msgspec.convert(values, kind, dec_hook=_show_value)


def encode_value(value: Any) -> str:
    """msgspec's hook for what it does not know how to write."""
    match value:
        case Pico():
            return format_pico(value)
        case Instant():
            return format_instant(value)
        case PublicId():
            return str(value)
    raise NotImplementedError(type(value))


def decode_value(kind: Any, value: Any) -> Any:
    """msgspec's hook for what it does not know how to read from JSON."""
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{_JSON_NAMES.get(type(value), 'object')}`")
    if kind is Pico:
        try:
            return Pico(parse_amount(value))
        except InvalidMoney as error:
            raise InvalidAmount(str(error)) from error
    return Instant(parse_instant(value)) if kind is Instant else kind(value)


def json_schema(kind: Any) -> dict[str, Any]:
    """msgspec's hook for the schemas of these types."""
    if not issubclass(kind, Pico | Instant | PublicId):
        raise NotImplementedError(kind)
    return {"type": "string"}


_JSON_NAMES = {int: "int", float: "float", bool: "bool", list: "array", type(None): "null"}


def _show_value(kind: Any, value: Any) -> Any:
    if isinstance(value, datetime):
        return kind(to_instant(value))
    return kind.of(value) if isinstance(value, UUID) else kind(value)
