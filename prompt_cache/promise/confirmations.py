"""Confirming what was decided at admission, when a request has its first token: before anything is told to its client.

At admission it is not certain that a request pays for what it writes: it may never run. Until then others may decide
to read what nobody has paid for. A writer is confirmed at its first token: then its leases are `told`. Three decisions
are made again (`LeaseDecider.decide_again`): to read a lease whose writer has failed or has no token yet, to write
where another has become the writer meanwhile, and to write what another has begun that has no token yet: that one's
lease is of the class, and goes on from the lease, that it asked for. Nothing here uses the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from prompt_cache.promise.lease_decisions import Lease, LeaseDecision


class Confirmation(Struct, frozen=True):
    """A request has its first token, or ends without one: then its prompt was computed up to `reach` tokens."""

    decision: LeaseDecision
    reach: int | None = None

    @property
    def lease_ids(self) -> Iterable[UUID]:
        """Every lease that the answer depends on."""
        if self.decision.hit is not None:
            yield self.decision.hit.id
        for lease in self.decision.written:
            yield lease.id


def is_certain(decision: LeaseDecision) -> bool:
    """Whether nothing that others do can change this decision any more: it writes nothing, and what it reads is paid
    for."""
    return not decision.written and (decision.hit is None or decision.hit.billed)


def stands(decision: LeaseDecision, leases: Mapping[UUID, Lease], purged: Mapping[UUID, UUID | None]) -> bool:
    """Whether the decision can be told, given the leases that there are, and those that were purged with their writers
    that had not paid by then.

    One that was purged while its writer ran is paid for by that one and stays ended.
    """
    hit, request = decision.hit, decision.request_id
    if hit is not None and not hit.billed:
        found = leases.get(hit.id)
        if found is None or not found.firm or found.lease_class != hit.lease_class:
            return False
    for written in decision.written:
        found = leases.get(written.id)
        if found is None:
            if written.id not in purged or (written.writer == request and purged[written.id] != request):
                return False
        elif found.writer != request and not (
            written.writer != request and found.firm and found.lease_class == written.lease_class
        ):
            return False
    return True


def confirmed(confirmation: Confirmation, leases: Mapping[UUID, Lease]) -> tuple[list[Lease], list[Lease]]:
    """What changes for the leases of a decision that stands: those to be updated, and those that end.

    Updated are the leases that it wrote, which are told now, and those of others that it reads or writes again, which
    live at least as long as was decided even if another writer has taken them over. Those end whose writer ended before
    it had computed their tokens.
    """
    told: list[Lease] = []
    failed: list[Lease] = []
    decision = confirmation.decision
    for used in (*decision.written, *(() if decision.hit is None else (decision.hit,))):
        lease = leases.get(used.id)
        if lease is None:
            continue
        if lease.writer != decision.request_id:
            if lease.expires_at < used.expires_at:
                told.append(replace(lease, expires_at=used.expires_at))
        elif confirmation.reach is not None and lease.tokens > confirmation.reach:
            failed.append(lease)
        else:
            told.append(replace(lease, told=True))
    return told, failed


class Confirmed(Struct, frozen=True):
    """Which of the decisions stand, the leases that change with them, and those that end."""

    stand: list[bool]
    changed: list[Lease]
    failed: list[Lease]


def confirm_in_order(
    asked: Sequence[Confirmation], found: Mapping[UUID, Lease], purged: Mapping[UUID, UUID | None]
) -> Confirmed:
    """Confirm the decisions that stand, of requests that ask at the same time, in any order.

    Each confirmed writer may let decisions of readers stand that did not before; so look until none is added.
    """
    leases = dict(found)
    stand = [False] * len(asked)
    changed: dict[UUID, Lease] = {}
    ended: list[Lease] = []
    progress = True
    while progress:
        progress = False
        for at, one in enumerate(asked):
            if stand[at] or not stands(one.decision, leases, purged):
                continue
            stand[at] = progress = True
            told, failed = confirmed(one, leases)
            ended += failed
            changed |= {lease.id: lease for lease in told}
            leases |= changed
            for lease in failed:
                del leases[lease.id]
                changed.pop(lease.id, None)
    return Confirmed(stand, list(changed.values()), ended)
