"""How an adapter reaches a replica: the replica asks for what it lacks, and the gateway that sent the request answers.

An adapter is named by its digest, which the replica makes again of what it gets: whoever sends it, the bytes are those
that were asked for. Its content is both of PEFT's files as one (`model_files.adapter_file.pack`), in parts.
"""

from __future__ import annotations

from protocol.message import Message

MOST_ADAPTER_BYTES = (1 << 30) + (1 << 20)
"""Bytes of an adapter's content."""
PART_BYTES = 1 << 20
"""Bytes of each part but the last."""


class WantAdapter(Message, frozen=True, tag="WantAdapter"):
    """Send this adapter: a request of this gateway waits for it."""

    digest: str


class AdapterPart(Message, frozen=True, tag="AdapterPart"):
    """A part of an adapter's content, from byte `offset` of `total`. Parts come in order.

    With `error` there is no content: the gateway has not got it.
    """

    digest: str
    offset: int
    total: int
    content: bytes = b""
    error: str = ""


class DropAdapter(Message, frozen=True, tag="DropAdapter"):
    """The adapter was deleted: drop it from memory. Requests that run keep its weights until they end."""

    digest: str
