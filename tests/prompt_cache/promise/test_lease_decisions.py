"""Deciding leases, in memory: what one transaction decides for several requests fits together."""

from __future__ import annotations

from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from prompt_cache.promise.lease_decider import LeaseDecider
from prompt_cache.promise.lease_decisions import LeaseWish, Mark
from tests.fast import FAST_EXAMPLES
from tests.prompt_cache.promise.decided_leases import PROJECT

START = 1_795_000_000_000_000
_AT = st.integers(1, 4)


def _wish(number: int, path: str, marks: set[int], lookups: set[int]) -> LeaseWish:
    within = sorted(at for at in marks if at <= len(path))
    return LeaseWish(
        request_id=UUID(int=100 + number),
        tenant_id=PROJECT,
        project_id=PROJECT,
        model="m",
        marks=tuple(Mark(64 * at, path[:at].encode(), "5m") for at in within),
        lookups=tuple(path[:at].encode() for at in sorted(lookups - set(within)) if at <= len(path)),
    )


asked = st.tuples(st.sampled_from(["aaa", "aaaa", "aab"]), st.sets(_AT, max_size=2), st.sets(_AT, max_size=3))
LEFT_AND_TAKEN_OVER = [("aaa", {1}, set()), ("aaa", {2}, {1, 3}), ("aaa", {2}, set()), ("aaa", {3}, set())]


@settings(max_examples=500 if settings().max_examples > FAST_EXAMPLES else 100)
@given(st.lists(asked, min_size=2, max_size=6), st.sets(st.integers(0, 5)))
@example(LEFT_AND_TAKEN_OVER, {3})
def test_what_is_decided_again_together_fits_together(
    requests: list[tuple[str, set[int], set[int]]], told: set[int]
) -> None:
    """Some requests have their first token and pay; all others decide again, in one transaction. What one of them
    writes does not end because another one no longer writes it."""
    wishes = [_wish(number, *one) for number, one in enumerate(requests)]
    admission = LeaseDecider(START, ())
    earlier = []
    for wish in wishes:
        earlier.append(admission.decide(wish))
        admission.take(wish, earlier[-1])
    writers = {wishes[at].request_id for at in told if at < len(wishes)}
    leases = [
        replace(one, told=one.writer in writers, billed=one.writer in writers) for one in admission.changed.values()
    ]
    again = LeaseDecider(START, leases)
    for wish, before in zip(wishes, earlier, strict=True):
        if wish.request_id in writers:
            continue
        decision = again.decide_again(wish, before, START)
        again.take(wish, decision)
        assert {one.writer for one in decision.written} <= {wish.request_id}
        assert {one.id for one in decision.written} <= {one.id for one in again.changed.values() if one.told}
        assert not again.failed.keys() & {id_ for one in again.changed.values() for id_ in (one.id, one.base)}
