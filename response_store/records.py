"""What is kept of a response, and what others learn of it."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from msgspec import Struct

Kind = Literal["chain", "stored", "background"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING: tuple[Status, ...] = ("queued", "in_progress")
GONE_ON_FROM: tuple[Status, ...] = ("completed", "incomplete")
"""The states of responses that others may go on from."""


class NewResponse(Struct, frozen=True, kw_only=True):
    """A response to keep. `request`: the JSON of its input items; `response`: of the object. `worker`: who runs it, if
    it has not ended. `lifetime_s`: how long it is kept."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    previous_id: UUID | None
    kind: Kind
    status: Status
    model: str
    request: bytes
    response: bytes
    lifetime_s: int
    worker: str | None = None


class ListedResponse(Struct, frozen=True, kw_only=True):
    """A response as a list shows it, without its content. Instants are microseconds since the Unix epoch."""

    id: UUID
    project_id: UUID
    previous_id: UUID | None
    kind: Kind
    status: Status
    model: str
    created_at: int
    expires_at: int
    bytes: int


class StoredResponse(ListedResponse, frozen=True, kw_only=True):
    """A response with its content, opened. `beat_at`: when its worker last said that it runs it."""

    request: bytes
    response: bytes
    worker: str | None
    beat_at: int | None
    cancelling: bool
