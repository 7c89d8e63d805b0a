"""What the responses of OpenAI's two completion endpoints share: their identity, finish reasons and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType

from billing.receipts.answer_receipts import Receipt
from gateway.conversation.tokenizer import Tokenizer
from gateway.dialects.openai.common_request import SERVICE_TIER_OF
from gateway.dialects.openai.completion_usage import CompletionUsage, completion_usage
from gateway.dialects.openai.errors import envelope
from gateway.generation.delivery import Failed, Finished, FinishReason, Started
from gateway.served_models.served_model import ServedModel
from protocol.requests import Lane

Receipts: TypeAlias = tuple[Receipt, ...] | UnsetType
"""Receipts of an answer, for a client who asked for them; ours."""


class Finish(Struct, frozen=True):
    """Why a choice ended. `limited_by` is ours: "budget" if the money ended before the output did."""

    reason: Literal["stop", "length"]
    limited_by: Literal["budget"] | UnsetType = UNSET


def finishes_of(reasons: Sequence[FinishReason]) -> list[Finish]:
    """The end of each choice, in OpenAI's terms."""
    return [Finish("length", "budget") if reason == "budget" else Finish(reason) for reason in reasons]


def usage_at(end: Finished) -> CompletionUsage:
    """The usage object of a response that ended like this."""
    return completion_usage(
        end.usage, end.cost_pico, end.currency, end.cached_until, reasoning=end.reasoning, predicted=end.predicted
    )


class ResponseIdentity(Struct, frozen=True):
    """The fields that all JSON objects of one response share. `id` begins with `chatcmpl-` or `cmpl-`."""

    id: str
    created: int
    model: str
    request_id: str
    service_tier: str
    system_fingerprint: str | None = None

    @classmethod
    def of(
        cls, prefix: str, id: UUID, model: ServedModel, request_id: str, created: int, *, lane: Lane
    ) -> ResponseIdentity:
        """The identity of a response of this model in this lane. `created` is in seconds since the Unix epoch."""
        tier, fingerprint = SERVICE_TIER_OF[lane], f"fp_{model.text_digest[:12]}"
        return cls(f"{prefix}-{id.hex}", created, model.full_name, request_id, tier, fingerprint)


encoder = msgspec.json.Encoder()
_LINE_ENDS = (("\x85", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
"""The mark after the last event of a stream that ended well."""


def event(body: object, name: str = "") -> bytes:
    """One server-sent event, named if a name is given.

    JSON escapes line feeds, so text cannot forge an event; the other line ends of Unicode are escaped too, for clients
    that split at them.
    """
    data = encoder.encode(body)
    for character, escaped in _LINE_ENDS:
        data = data.replace(character.encode(), escaped)
    data = b"data: " + data + b"\n\n"
    return b"event: %b\n%b" % (name.encode(), data) if name else data


class CompletionWriter:
    """Base of both endpoints' `ResponseWriter`."""

    withholds = False

    def __init__(self, identity: ResponseIdentity, tokenizer: Tokenizer, *, include_usage: bool) -> None:
        self._identity = identity
        self._tokenizer = tokenizer
        self._include_usage = include_usage

    def started(self, start: Started) -> bytes:
        """Nothing: OpenAI's streams say the usage at their end."""
        return b""

    def keep_alive(self) -> bytes:
        """A comment, which clients skip."""
        return KEEP_ALIVE

    def failed(self, end: Failed) -> bytes:
        """The error event, which the official client raises as an exception. No `DONE` follows it."""
        return event(envelope(end.failure, self._identity.request_id))
