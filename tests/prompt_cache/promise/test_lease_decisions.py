"""Deciding leases, in memory: what one transaction decides for several requests fits together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from prompt_cache.promise.lease_decider import LeaseDecider
from prompt_cache.promise.lease_decisions import Confirmation, Lease, LeaseDecision, LeaseWish, Mark
from tests.fast import examples
from tests.prompt_cache.promise.decided_leases import PROJECT

START = 1_795_000_000_000_000
_AT = st.integers(1, 4)


class Asked(Struct, frozen=True):
    """A request for the prompt `path`. `moment`: when it has its first token, None if it never has one. `reach`: it
    ends then without a token, when so much of its prompt is computed."""

    path: str
    marks: set[int]
    lookups: set[int]
    moment: int | None
    read: bool = True
    reach: int | None = None

    @property
    def reached_tokens(self) -> int | None:
        return None if self.reach is None else 64 * self.reach

    def wish(self, number: int) -> LeaseWish:
        marks = sorted(at for at in self.marks if at <= len(self.path))
        lookups = sorted(at for at in self.lookups - set(marks) if at <= len(self.path))
        return LeaseWish(
            request_id=UUID(int=100 + number),
            tenant_id=PROJECT,
            project_id=PROJECT,
            model="m",
            marks=tuple(Mark(64 * at, self.path[:at].encode(), "5m") for at in marks),
            lookups=tuple(self.path[:at].encode() for at in lookups),
            read=self.read,
        )


def _saved(leases: Sequence[Lease], decider: LeaseDecider) -> list[Lease]:
    """The leases after a transaction; with one that failed those end that go on from it."""
    after = {lease.id: lease for lease in (*leases, *decider.changed.values())}
    ended = decider.failed.keys()
    while ended:
        after = {id_: lease for id_, lease in after.items() if id_ not in ended}
        ended = {lease.id for lease in after.values() if lease.base in ended}
    return list(after.values())


def _paid(request: Asked, wish: LeaseWish, decision: LeaseDecision) -> Iterable[UUID]:
    """The leases of which it pays the write."""
    own = (lease for lease in decision.written if lease.writer == wish.request_id)
    return (lease.id for lease in own if request.reached_tokens is None or lease.tokens <= request.reached_tokens)


asked = st.builds(
    Asked,
    st.sampled_from(["aaa", "aaaa", "aab"]),
    st.sets(_AT, max_size=2),
    st.sets(_AT, max_size=3),
    st.sampled_from([0, 1, 1, 2, None]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([None, None, None, 1, 2]),
)
LEFT_AND_TAKEN_OVER = [
    Asked("aaa", {1}, set(), None),
    Asked("aaa", {2}, {1, 3}, 1),
    Asked("aaa", {2}, set(), 1),
    Asked("aaa", {3}, set(), 0),
]
LEFT_BEFORE_ITS_MARK = [Asked("aa", {2}, set(), None), Asked("aa", {2}, set(), 0, reach=1), Asked("aa", {2}, set(), 1)]
TAKEN_OVER_BY_THE_LONGER = [Asked("aaa", {1}, {1, 2}, 1), Asked("aaa", {1, 2}, set(), 0)]


@settings(max_examples=examples(500))
@given(st.lists(asked, min_size=2, max_size=6))
@example(LEFT_AND_TAKEN_OVER)
@example(LEFT_BEFORE_ITS_MARK)
@example(TAKEN_OVER_BY_THE_LONGER)
def test_what_is_decided_again_together_fits_together(requests: list[Asked]) -> None:
    """At each moment, requests that have their first token confirm what was decided. Those whose decisions do not stand
    decide again, in one transaction. What one of them writes does not end because another one no longer writes it."""
    wishes = [request.wish(number) for number, request in enumerate(requests)]
    admission = LeaseDecider(START, ())
    decisions: dict[UUID, LeaseDecision] = {}
    for wish in wishes:
        decision = decisions[wish.request_id] = admission.decide(wish)
        admission.take(wish, decision)
    leases = _saved((), admission)
    told: list[tuple[Asked, LeaseWish]] = []
    for moment in range(3):
        batch = [(request, wish) for request, wish in zip(requests, wishes, strict=True) if request.moment == moment]
        confirmations = LeaseDecider(START, leases)
        stand = confirmations.confirm(
            [Confirmation(decisions[wish.request_id], request.reached_tokens) for request, wish in batch], {}
        )
        leases = _saved(leases, confirmations)
        again = LeaseDecider(START, leases)
        for (request, wish), stands in zip(batch, stand, strict=True):
            if not stands:
                decision = again.decide_again(wish, decisions[wish.request_id], START, request.reached_tokens)
                again.take(wish, decision)
                decisions[wish.request_id] = decision
        assert not again.failed.keys() & {id_ for one in again.changed.values() for id_ in (one.id, one.base)}
        leases = _saved(leases, again)
        told += batch
        by_id = {lease.id: lease for lease in leases}
        for lease in leases:
            assert not lease.told or lease.base is None or by_id[lease.base].told, (
                "who is told pays for all that is new"
            )
        writes = [id_ for request, wish in told for id_ in _paid(request, wish, decisions[wish.request_id])]
        assert sorted(writes) == sorted(lease.id for lease in leases if lease.told), "each is paid for once"
        runs = {wish.request_id for _, wish in told}
        assert sorted(writes) == sorted(lease.id for lease in leases if lease.writer in runs), "what it left has ended"
        for _, wish in told:
            hit = decisions[wish.request_id].hit
            assert hit is None or by_id[hit.id].told
            assert not wish.read or {one.writer for one in decisions[wish.request_id].written} <= {wish.request_id}
