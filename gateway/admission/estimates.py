"""What a request may cost, before any of it is done: for `max_cost`, and for POST /v1/estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from billing.money import format_amount
from billing.prices import LANES, PriceMissing
from gateway.admission.affordability import cost_bound
from gateway.admission.cache_leases import LeasePayer, lease_request, needs_leases
from gateway.admission.prepared_request import PreparedRequest
from gateway.errors import CostAboveMaximum
from prompt_cache.promise.lease_decisions import LeaseDecision, split_prompt
from prompt_cache.promise.lease_store import LeaseStore
from storage.free_text import counted


def within_max_cost(prepared: Sequence[PreparedRequest]) -> Sequence[PreparedRequest]:
    """The parts of one request, if its upper bound is within its `max_cost`. A request without `max_tokens` is
    shortened until it is. Raises CostAboveMaximum."""
    first = prepared[0]
    most = first.generation.max_cost_pico
    if most is None:
        return prepared
    bound = sum(cost_bound(part, part.sampling.max_tokens) for part in prepared)
    if bound <= most:
        return prepared
    prompt = sum(cost_bound(part, 0) for part in prepared)
    token = sum(cost_bound(part, 1) for part in prepared) - prompt
    fits = (most - prompt) // token if token and most > prompt else 0
    if len(prepared) == 1 and first.generation.max_tokens is None and fits >= max(1, first.generation.min_tokens):
        sampling = replace(first.sampling, max_tokens=fits)
        return [replace(first, sampling=sampling, held_output=min(first.held_output, fits), shortened=True)]
    tokens = sum(len(part.prompt.tokens) for part in prepared)
    advice = f"max_tokens of at most {fits} would fit" if fits else f"its {counted(tokens, 'prompt token')} cost more"
    raise CostAboveMaximum(
        f"This request may cost {format_amount(bound)} {first.price.currency}, more than its max_cost of "
        f"{format_amount(most)}; {advice}. Nothing was computed or billed.",
        path=first.generation.max_cost_path,
    )


class Estimate(Struct, frozen=True, kw_only=True):
    """What a request would be billed for its prompt now, and at most in each lane, in pico-units.

    `read` and `write`: tokens by class of leases; `uncached`: the others, of which a replica may have some by chance,
    which are then cheaper. `bounds`: of the lanes that have a price and that the key may use.
    """

    uncached: int
    read: Mapping[str, int]
    write: Mapping[str, int]
    expires_at: int | None
    bounds: Mapping[str, int]


async def estimate(prepared: PreparedRequest, leases: LeaseStore) -> Estimate:
    """The estimate of a request that is not to run. Raises DatabaseUnavailable."""
    tokens = len(prepared.prompt.tokens)
    decision = await _foreseen(prepared, leases)
    read, write, covered = split_prompt(() if decision is None else decision.parts, tokens)
    bounds: dict[str, int] = {}
    for lane in LANES:
        if not prepared.payer.limits.allows_lane(lane):
            continue
        in_lane = replace(prepared, generation=replace(prepared.generation, lane=lane))
        try:
            bounds[lane] = cost_bound(in_lane, prepared.sampling.max_tokens)
        except PriceMissing:
            continue
    return Estimate(
        uncached=tokens - covered,
        read=read,
        write=write,
        expires_at=None if decision is None else decision.expires_at,
        bounds=bounds,
    )


async def _foreseen(prepared: PreparedRequest, leases: LeaseStore) -> LeaseDecision | None:
    if prepared.keys is None or not needs_leases(prepared.plan):
        return None
    payer, generation = prepared.payer, prepared.generation
    asked = lease_request(
        LeasePayer(prepared.request_id, payer.tenant_id, payer.project_id, generation.lane),
        prepared.plan,
        prepared.keys,
        prepared.terms,
        prepared.price,
    )
    return await leases.foresee(asked.wish)
