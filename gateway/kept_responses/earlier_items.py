"""The items of kept responses, read where a request goes on from them or refers to them.

The cost of decoding depends on the number of items, not on bytes. So their number has the same bound as that of a
request's own body. Responses are decoded one after the other, so that none beyond the bound is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gateway.dialects.large_bodies import MOST_PARTS
from gateway.dialects.openai.responses.input_items import InputItem, numbered
from response_store.records import StoredResponse


class TooManyItems(Exception):
    """Kept responses have more items and parts together than a request may have."""


class KeptRequest(Struct, frozen=True):
    """What is kept of a request that has ended."""

    input: str | list[InputItem] | None = None


class _Output(Struct, frozen=True):
    output: list[InputItem] = []


_request, _output = msgspec.json.Decoder(KeptRequest), msgspec.json.Decoder(_Output)


def input_of(stored: StoredResponse) -> list[InputItem]:
    """The items of a response's own input, by the ids that they are listed and referred to by."""
    kept = _request.decode(stored.request).input
    return numbered([InputItem(role="user", content=kept)] if isinstance(kept, str) else kept or [], stored.id.hex)


def items_of(responses: Sequence[StoredResponse]) -> list[InputItem]:
    """The inputs and outputs of responses, in order. Raises TooManyItems."""
    items: list[InputItem] = []
    left = MOST_PARTS
    for stored in responses:
        more = [*input_of(stored), *_output.decode(stored.response).output]
        left -= _parts(more)
        if left < 0:
            raise TooManyItems
        items += more
    return items


def _parts(items: Sequence[InputItem]) -> int:
    lists = (field for item in items for field in (item.content, item.output, item.summary) if isinstance(field, list))
    return len(items) + sum(map(len, lists))
