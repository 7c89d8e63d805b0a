"""Commitments: what invoices ask for one, what it pays, and what is left of it. Pure functions, exact amounts.

A commitment pays what was funded: what invoices asked for it, less what of that was credited or written off, and what
was paid in another way. Both follow from the documents that were issued, never from terms alone, so that nothing pays
that nobody was asked for. A period in which the commitment is not in force asks for nothing and draws nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

import msgspec

from billing.calendar import months, period_bounds
from billing.rating.lines import RatedLine, money_text
from billing.rating.schedules import Schedule
from billing.rating.terms import Commitment


class CommitmentLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an issued invoice about a commitment: `exact_pico` is what it asks for, or below 0 what it pays.

    `credited_pico` of it was taken back by credit notes, with the same sign; `net_left` minor units are left of it.
    `finalized_at` is the invoice's.
    """

    invoice_id: UUID
    number: str
    n: int
    period: str
    exact_pico: int
    credited_pico: int = 0
    net_left: int = 0
    written_off: bool = False
    finalized_at: int = 0

    @property
    def asked_pico(self) -> int:
        """What the line asked for when it was issued."""
        return max(0, self.exact_pico)

    @property
    def funds_pico(self) -> int:
        """What the line puts into the commitment: nothing where it was credited or written off."""
        return 0 if self.written_off else self.uncredited_pico

    @property
    def uncredited_pico(self) -> int:
        """What the line asks for still, less what was credited of it."""
        return max(0, self.exact_pico - self.credited_pico)

    @property
    def draws_pico(self) -> int:
        """What the commitment pays on this line."""
        return max(0, self.credited_pico - self.exact_pico)


class CommitmentAccount(msgspec.Struct, frozen=True):
    """Sums of a commitment's lines, in pico-units.

    `asked`: by invoices of earlier periods, credits not deducted. `funded`, `drawn`: by invoices of all other periods.
    """

    asked: int = 0
    funded: int = 0
    drawn: int = 0

    def asks(self, commitment: Commitment) -> int:
        """What the period's invoice asks for: what nobody was asked for yet, the difference where it was raised."""
        if not commitment.invoiced:
            return 0
        return max(0, commitment.amount_pico - commitment.paid_pico - self.asked)

    def funds(self, commitment: Commitment) -> int:
        """What was put into the commitment."""
        return self.funded + commitment.paid_pico

    def left(self, commitment: Commitment) -> int:
        """What can be drawn."""
        return max(0, min(commitment.amount_pico, self.funds(commitment)) - self.drawn)

    def asking(self, commitment: Commitment) -> CommitmentAccount:
        """The account with what the period's invoice asks for."""
        asked = self.asks(commitment)
        return self.after(asked, asked, 0)

    def after(self, asked: int, funded: int, drawn: int) -> CommitmentAccount:
        """The account with a period's lines added."""
        return CommitmentAccount(self.asked + asked, self.funded + funded, self.drawn + drawn)


class CommitmentMonth(msgspec.Struct, frozen=True, kw_only=True):
    """A month of a commitment as it is or will be, in pico-units. `sent`: its invoice was issued.

    `asked` is on the month's invoice, `funded` has been funded until then. `drawn` is what the commitment pays of the
    month's usage until now, None for a month to come; `left` is what it can still pay after that.
    """

    period: str
    sent: bool
    asked: int
    funded: int
    drawn: int | None
    left: int


def lines_of(lines: Iterable[CommitmentLine], schedule: Schedule, first: str) -> list[CommitmentLine]:
    """Those of a tenant's lines that are about the commitment which begins in this period."""

    def is_about(period: str) -> bool:
        commitment = schedule.terms_of(period).commitment
        return commitment is not None and commitment.first == first

    return [line for line in lines if is_about(line.period)]


def account_of(lines: Iterable[CommitmentLine], period: str) -> CommitmentAccount:
    """A commitment's account for a period, of the commitment's lines on invoices of other periods."""
    others = [line for line in lines if line.period != period]
    return CommitmentAccount(
        sum(line.asked_pico for line in others if line.period < period),
        sum(line.funds_pico for line in others),
        sum(line.draws_pico for line in others),
    )


def commitment_lines(commitment: Commitment, net: int, period: str, account: CommitmentAccount) -> list[RatedLine]:
    """What a period's invoice asks for the commitment, and what that pays of the period's sum `net` before minimum."""
    if not commitment.covers(period):
        return []
    added = []
    if asked := account.asks(commitment):
        text = f"Commitment for {commitment.first} to {commitment.last}"
        if asked < commitment.amount_pico:
            text += f": what was not asked for of {money_text(commitment.amount_pico)}"
        added.append(_line(text, asked, period))
    if drawn := max(0, min(net, left := account.asking(commitment).left(commitment))):
        added.append(_line(f"Paid by the commitment, of which {money_text(left - drawn)} is left", -drawn, period))
    return added


def preview(
    schedule: Schedule, first: str, lines: Iterable[CommitmentLine], sent: Collection[str], nets: Mapping[str, int]
) -> list[CommitmentMonth]:
    """The months of the commitment that begins in `first`, of the tenant's lines, periods that have an invoice, and the
    sums of periods that have none yet but have begun."""
    latest = schedule.latest(first)
    if latest is None:
        return []
    account, rows, own_lines = CommitmentAccount(), [], lines_of(lines, schedule, first)
    for period in months(first, latest.last):
        commitment = schedule.commitment_of(period)
        if commitment is None or commitment.first != first:
            continue
        of_period = [line for line in own_lines if line.period == period]
        if period in sent:
            asked = sum(line.asked_pico for line in of_period)
            drawn: int | None = sum(line.draws_pico for line in of_period)
            account = account.after(asked, sum(line.funds_pico for line in of_period), drawn or 0)
        else:
            asked, account = account.asks(commitment), account.asking(commitment)
            drawn = max(0, min(nets[period], account.left(commitment))) if period in nets else None
            account = account.after(0, 0, drawn or 0)
        funded, left = account.funds(commitment), account.left(commitment)
        rows.append(
            CommitmentMonth(period=period, sent=period in sent, asked=asked, funded=funded, drawn=drawn, left=left)
        )
    return rows


def unfunded(
    lines: Iterable[CommitmentLine], schedule: Schedule, first: str, written_off: Mapping[UUID, int]
) -> list[tuple[CommitmentLine, int]]:
    """The lines by which a commitment pays more than was funded, and how much more; `written_off` says since when an
    invoice is. What was paid before that stands: it had been asked for."""
    own_lines = lines_of(lines, schedule, first)
    latest = schedule.latest(first)
    if latest is None:
        return []
    drawn, excesses = 0, []
    for line in sorted((line for line in own_lines if line.draws_pico), key=lambda line: line.finalized_at):
        drawn += line.draws_pico
        funding = (
            other.uncredited_pico
            for other in own_lines
            if not other.written_off or written_off.get(other.invoice_id, line.finalized_at) >= line.finalized_at
        )
        if (excess := drawn - CommitmentAccount(funded=sum(funding)).funds(latest)) > 0:
            excesses.append((line, min(line.draws_pico, excess)))
    return excesses


def _line(text: str, pico: int, period: str) -> RatedLine:
    start, end = period_bounds(period)
    return RatedLine(kind="commitment", description=text, exact_pico=pico, service_start=start, service_end=end)
