"""How an adapter reaches a replica: the replica asks for what it lacks, and the gateway that sent the request answers.

An adapter's name is its digest and whose it is. The replica makes the digest again of what it gets: whoever sends it,
the bytes are those that were asked for. Equal adapters of two owners are two to a replica, so that neither can tell by
the time which a request takes that the other's is there. Its content is both of PEFT's files as one
(`model_files.adapter_file.pack`), in parts.
"""

from __future__ import annotations

from uuid import UUID

from protocol.message import Message, Value

MOST_ADAPTER_BYTES = (1 << 30) + (1 << 20)
"""Bytes of an adapter's content."""
PART_BYTES = 1 << 20
"""Bytes of each part but the last."""


def adapter_name(digest: str, owner: str) -> str:
    """The name of an owner's adapter."""
    return f"{digest}@{owner}"


def digest_of(name: str) -> str:
    """The digest of what has this name."""
    return name.partition("@")[0]


def project_of(name: str) -> tuple[UUID, str] | None:
    """The project whose adapter has this name, and its digest; None for a name that is of no project."""
    try:
        return UUID(hex=name.partition("@")[2]), digest_of(name)
    except ValueError:
        return None


class ResidentAdapter(Value, frozen=True):
    """How long the adapter `name` had a slot in the hour that began at `hour`, in milliseconds: a count that only grows
    within an epoch of its replica. `hour`: seconds since the Unix epoch. `ready`: whether it has one now."""

    name: str
    hour: int
    milliseconds: int
    ready: bool


class WantAdapter(Message, frozen=True, tag="WantAdapter"):
    """Send this adapter: a request of this gateway waits for it."""

    name: str


class AdapterPart(Message, frozen=True, tag="AdapterPart"):
    """A part of an adapter's content, from byte `offset` of `total`. Parts come in order.

    With `error` there is no content: the gateway has not got it.
    """

    name: str
    offset: int
    total: int
    content: bytes = b""
    error: str = ""


class DropAdapter(Message, frozen=True, tag="DropAdapter"):
    """The adapter was deleted: drop it from memory. Requests that run keep its weights until they end."""

    name: str
