"""A tenant's schedule: its terms from period to period, as the rows of contract terms add up to them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.money import format_pico
from billing.rating.terms import Commitment, ContractTerms, InvalidTerms
from billing.tables.prices import contract_terms


class ScheduledTerms(msgspec.Struct, frozen=True):
    """All terms from a period on, until the next ones begin. `id` is 0 for terms that are not stored."""

    id: int
    from_period: str
    terms: ContractTerms


class Schedule(msgspec.Struct, frozen=True):
    """Terms in the order in which they begin, each from another period."""

    rows: tuple[ScheduledTerms, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[ScheduledTerms]) -> Schedule:
        """The schedule of rows in the order in which they were set: of two from the same period, the later one."""
        by_period = {row.from_period: row for row in rows}
        return cls(tuple(by_period[period] for period in sorted(by_period)))

    def with_terms(self, from_period: str, terms: ContractTerms) -> Schedule:
        """The schedule as it is once these terms are set."""
        return Schedule.of((*self.rows, ScheduledTerms(0, from_period, terms)))

    def terms_of(self, period: str) -> ContractTerms:
        """The terms that apply to a period."""
        begun = [row.terms for row in self.rows if row.from_period <= period]
        return begun[-1] if begun else ContractTerms()

    def commitment_of(self, period: str) -> Commitment | None:
        """The commitment that can pay usage of a period."""
        commitment = self.terms_of(period).commitment
        return commitment if commitment is not None and commitment.covers(period) else None

    def latest(self, first: str) -> Commitment | None:
        """The commitment that begins in this period, as the latest terms with it say."""
        of_rows = [row.terms.commitment for row in self.rows]
        return next((one for one in reversed(of_rows) if one is not None and one.first == first), None)

    def check(self, from_period: str) -> None:
        """Raise InvalidTerms unless each commitment that is in force from this period on was begun by its own terms,
        and is neither lowered nor loses a payment by later ones."""
        for before, row in pairwise((ScheduledTerms(0, "", ContractTerms()), *self.rows)):
            commitment, earlier = row.terms.commitment, before.terms.commitment
            if commitment is None or commitment.first >= row.from_period or row.from_period < from_period:
                continue
            if earlier is None or earlier.first != commitment.first:
                raise _not_begun(row, from_period)
            if commitment.amount_pico < earlier.amount_pico:
                raise InvalidTerms(
                    "commitment.amount",
                    f"{format_pico(commitment.amount_pico)} is less than {format_pico(earlier.amount_pico)}, which was"
                    " set before: a commitment that has begun can be raised or ended, and what it asked for credited",
                )
            if missing := [one.reference for one in earlier.payments if one not in commitment.payments]:
                problem = f"the payment {missing[0]!r} was recorded before, and stays as it was"
                raise InvalidTerms("commitment.payments", problem)


def _not_begun(row: ScheduledTerms, from_period: str) -> InvalidTerms:
    commitment = row.terms.commitment
    assert commitment is not None, "the row goes on with a commitment"
    if row.from_period == from_period:
        problem = (
            f"{commitment.first} is before {from_period}, from which these terms apply, and no terms began it then"
        )
        return InvalidTerms("commitment.first", problem)
    later = f"terms {row.id} from {row.from_period} on go on with the commitment of {commitment.first}"
    return InvalidTerms("commitment", f"{later}, which these terms do not have: set those first")


async def read_schedule(session: AsyncSession, tenant_id: UUID) -> Schedule:
    """The tenant's schedule, in this transaction."""
    row = contract_terms.c
    query = select(row.id, row.from_period, row.body).where(row.tenant_id == tenant_id).order_by(row.id)
    return Schedule.of(
        ScheduledTerms(number, period, msgspec.json.decode(body, type=ContractTerms))
        for number, period, body in await session.execute(query)
    )
