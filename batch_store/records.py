"""What a batch and its lines are, as others learn of them. Instants are microseconds since the Unix epoch."""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias
from uuid import UUID

from msgspec import Struct

from storage.database.base import id_of

Surface: TypeAlias = Literal["openai", "anthropic"]
Status: TypeAlias = Literal[
    "validating", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled"
]
UNFINISHED: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
PartKind: TypeAlias = Literal["output", "error"]
LineEnd: TypeAlias = Literal["completed", "failed", "cancelled", "expired"]
WINDOW_S = 86_400
"""How long a batch may run."""


class Tokens(Struct, frozen=True):
    """The tokens of answers together."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )


class BatchProblem(Struct, frozen=True):
    """Why a batch failed, or was stopped. `line`: of the input, from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class NewBatch(Struct, frozen=True, kw_only=True):
    """A batch to be run. `key`: the public id of the API key that ordered it."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    key: str
    surface: Surface
    endpoint: str
    input_file_id: UUID
    output_lifetime_s: int
    metadata: dict[str, str] | None = None
    window_s: int = WINDOW_S


class Batch(Struct, frozen=True, kw_only=True):
    """A batch as it stands."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    key: str
    surface: Surface
    endpoint: str
    status: Status
    input_file_id: UUID
    output_file_id: UUID | None
    error_file_id: UUID | None
    output_lifetime_s: int
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    cancelling_at: int | None
    ended_at: int | None
    total: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    tokens: Tokens
    metadata: dict[str, str] | None
    problems: tuple[BatchProblem, ...]

    @property
    def ended(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.status not in UNFINISHED


class Line(Struct, frozen=True, kw_only=True):
    """A line of a batch's input: `number` from 0, where it lies, and how often its request came to nothing."""

    number: int
    offset: int
    length: int
    place: bytes
    attempt: int = 0


class LineResult(Struct, frozen=True, kw_only=True):
    """What came of a line: its JSON without a line break, and how it counts."""

    number: int
    end: LineEnd
    kind: PartKind
    content: bytes
    tokens: Tokens = Tokens()


def line_request_id(batch_id: UUID, number: int, attempt: int) -> UUID:
    """The id of the request of a line: the same however often it is asked for, so that its usage counts once. It has
    the form and the time of its batch's UUIDv7, since rows of usage lie by time."""
    name = batch_id.bytes + number.to_bytes(8, "big") + attempt.to_bytes(8, "big")
    digest = bytearray(hashlib.sha256(b"turnpike/batch-line/v1" + name).digest()[:10])
    digest[0] = digest[0] & 0x0F | 0x70
    digest[2] = digest[2] & 0x3F | 0x80
    return id_of(batch_id.bytes[:6] + bytes(digest))
