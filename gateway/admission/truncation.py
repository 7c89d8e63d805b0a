"""Shortens a conversation that is longer than the context, for a client who asked for that: the oldest goes first.

Instructions stay, and so does the last message. Calls go with their results. First whole exchanges are left out, each
from a user's message up to the next one, then the earliest calls of the last exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from gateway.admission.admission import Admission, CountBytes, uncounted
from gateway.admission.prepared_request import Payer
from gateway.admission.request_size import request_memory
from gateway.errors import ContextExceeded
from gateway.generation_request import GenerationRequest, Turn
from gateway.served_models.served_model import ServedModel

_SHARE = 4
"""A fourth of the context is left for an answer of which nobody said how long it may be."""


async def fitted(
    admission: Admission,
    payer: Payer,
    model: ServedModel,
    generation: GenerationRequest,
    count: CountBytes = uncounted,
) -> GenerationRequest:
    """The request with as little left out as makes it fit the model's context, and its answer with it. Raises
    InvalidRequest if nothing more can be left out; RateLimited, and what `count` raises."""
    context = admission.context_tokens(model)
    room = context - min(generation.max_tokens or context // _SHARE, context // 2)
    count(request_memory(generation))
    if await _fits(admission, payer, model, generation, room):
        return generation
    units = _units(generation.turns)
    least, most = 1, len(units)
    if not units or not await _fits(admission, payer, model, _without(generation, units), room):
        return _without(generation, units)  # it may fit without the room for the answer; else its error is told
    while least < most:
        middle = (least + most) // 2
        if await _fits(admission, payer, model, _without(generation, units[:middle]), room):
            most = middle
        else:
            least = middle + 1
    return _without(generation, units[:least])


async def _fits(
    admission: Admission, payer: Payer, model: ServedModel, generation: GenerationRequest, room: int
) -> bool:
    try:
        return len((await admission.prompt(payer.tenant_id, model, generation)).tokens) <= room
    except ContextExceeded:
        return False


def _units(turns: Sequence[Turn]) -> list[range]:
    """What may be left out, in this order: turns that belong together."""
    begin = next((at for at, turn in enumerate(turns) if turn.role not in ("system", "developer")), len(turns))
    users = [at for at in range(begin, len(turns)) if turns[at].role == "user"]
    if not users:
        return []
    units = [range(begin, users[0])] if users[0] > begin else []
    units += [range(at, after) for at, after in pairwise(users)]
    steps = [at for at in range(users[-1] + 1, len(turns)) if turns[at].role == "assistant"]
    return units + [range(at, after) for at, after in pairwise(steps)]


def _without(generation: GenerationRequest, units: Sequence[range]) -> GenerationRequest:
    """The request without these turns, and without the cache markers that stood in them."""
    gone = {at for unit in units for at in unit}
    turns = tuple(turn for at, turn in enumerate(generation.turns) if at not in gone)
    lost = {text.path for at in gone for text in generation.turns[at].texts}
    markers = tuple(marker for marker in generation.cache.markers if marker.path not in lost)
    return replace(generation, turns=turns, cache=replace(generation.cache, markers=markers))
