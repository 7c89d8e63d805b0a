"""Commitments over random schedules: what is asked for, funded, drawn and left is what fractions say."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.rating.commitments import (
    CommitmentLine,
    account_of,
    commitment_lines,
    lines_of,
    preview,
    unfunded,
)
from billing.rating.schedules import Schedule, ScheduledTerms
from billing.rating.terms import Commitment, CommitmentPayment, ContractTerms, InvalidTerms
from storage.database.base import new_id
from tests.fast import examples

EXAMPLES = int(os.environ.get("RATING_EXAMPLES", "150"))
MONTHS = [f"2026-{month:02}" for month in range(1, 11)]
amounts = st.integers(1, 10**14)


@st.composite
def schedules(draw: Any) -> Schedule:
    """Terms that begin in several months, as people may set them: sound or not."""
    firsts = draw(st.lists(st.sampled_from(MONTHS[:6]), min_size=1, max_size=2))
    rows = []
    for number, begins in enumerate(draw(st.lists(st.sampled_from(MONTHS), min_size=1, max_size=5)), 1):
        first = draw(st.sampled_from(firsts))
        amount = draw(amounts)
        payments: tuple[CommitmentPayment, ...] = ()
        if draw(st.booleans()):
            payments = (CommitmentPayment(amount_pico=draw(st.integers(1, amount)), reference="bank", reason="paid"),)
        commitment = Commitment(
            amount_pico=amount,
            first=first,
            last=max(first, draw(st.sampled_from(MONTHS))),
            invoiced=draw(st.booleans()),
            payments=payments,
        )
        terms = ContractTerms(commitment=draw(st.sampled_from([commitment, commitment, None])))
        rows.append(ScheduledTerms(number, begins, terms))
    return Schedule.of(rows)


class Oracle:
    """A commitment by the month, as somebody would compute it with a pencil: a purse that is filled and emptied."""

    def __init__(self) -> None:
        self.asked: dict[str, Fraction] = {}
        self.funded: dict[str, Fraction] = {}
        self.drawn: dict[str, Fraction] = {}

    def month(self, in_force: Commitment | None, net: int) -> tuple[Fraction, Fraction]:
        """What the month asks for, and what is drawn in it."""
        if in_force is None:
            return Fraction(0), Fraction(0)
        purse, amount = in_force.first, Fraction(in_force.amount_pico)
        paid = Fraction(sum(one.amount_pico for one in in_force.payments))
        asked, funded, drawn = (sums.setdefault(purse, Fraction(0)) for sums in (self.asked, self.funded, self.drawn))
        more = max(Fraction(0), amount - paid - asked) if in_force.invoiced else Fraction(0)
        used = max(Fraction(0), min(Fraction(net), min(amount, funded + more + paid) - drawn))
        self.asked[purse], self.funded[purse], self.drawn[purse] = asked + more, funded + more, drawn + used
        return more, used


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(
    schedules(),
    st.lists(st.integers(-(10**13), 10**14), min_size=len(MONTHS), max_size=len(MONTHS)),
    st.lists(st.sampled_from(["", "", "", "credited", "written off"]), min_size=len(MONTHS), max_size=len(MONTHS)),
)
def test_a_schedule_comes_to_what_fractions_say(schedule: Schedule, nets: list[int], fates: list[str]) -> None:
    issued: list[CommitmentLine] = []
    oracle = Oracle()
    for at, (period, net, fate) in enumerate(zip(MONTHS, nets, fates, strict=True)):
        in_force = schedule.commitment_of(period)
        asked, drawn = oracle.month(in_force, net)
        found = []
        if in_force is not None:
            account = account_of(lines_of(issued, schedule, in_force.first), period)
            found = commitment_lines(in_force, net, period, account)
        assert [line.exact_pico for line in found] == [pico for pico in (asked, -drawn) if pico]
        invoice, written_off = new_id(), fate == "written off"
        for n, line in enumerate(found, 1):
            credited = line.exact_pico if fate == "credited" else 0
            issued.append(
                CommitmentLine(
                    invoice_id=invoice, number=str(at), n=n, period=period, exact_pico=line.exact_pico,
                    credited_pico=credited, written_off=written_off, finalized_at=at,
                )
            )  # fmt: skip
        if in_force is not None and fate == "credited":  # of the whole invoice
            oracle.funded[in_force.first] -= asked
            oracle.drawn[in_force.first] -= drawn
        elif in_force is not None and written_off:
            oracle.funded[in_force.first] -= asked
    written = {line.invoice_id: line.finalized_at for line in issued if line.written_off}
    for first in {commitment.first for row in schedule.rows if (commitment := row.terms.commitment) is not None}:
        mine = lines_of(issued, schedule, first)
        assert sum(line.funds_pico for line in mine) == oracle.funded.get(first, 0)
        assert sum(line.draws_pico for line in mine) == oracle.drawn.get(first, 0)
        highest = max(row.terms.commitment.amount_pico for row in schedule.rows
                      if row.terms.commitment is not None and row.terms.commitment.first == first)  # fmt: skip
        assert sum(line.asked_pico for line in mine) <= highest
        try:
            schedule.check("")
        except InvalidTerms:
            continue
        # a credited invoice leaves later ones that drew from it: credit notes refuse that, and the audit names it
        if "credited" not in fates:
            assert unfunded(issued, schedule, first, written) == []


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(schedules(), st.lists(st.integers(0, 10**14), min_size=len(MONTHS), max_size=len(MONTHS)))
def test_a_preview_says_what_the_invoices_will_say(schedule: Schedule, nets: list[int]) -> None:
    oracle = Oracle()
    expected = [oracle.month(schedule.commitment_of(period), net) for period, net in zip(MONTHS, nets, strict=True)]
    for first in MONTHS[:6]:
        latest = schedule.latest(first)
        months = preview(schedule, first, [], (), dict(zip(MONTHS, nets, strict=True)))
        assert bool(months) <= (latest is not None)
        for month in months:
            asked, drawn = expected[MONTHS.index(month.period)]
            assert [Fraction(month.asked), Fraction(month.drawn or 0)] == [asked, drawn]
            assert 0 <= month.left <= max(0, month.funded)
        for month in preview(schedule, first, [], (), {}):
            assert (month.drawn, month.sent) == (None, False), "nobody knows what will be used"


def _schedule(*rows: tuple[str, Commitment | None]) -> Schedule:
    return Schedule.of(
        ScheduledTerms(number, period, ContractTerms(commitment=commitment))
        for number, (period, commitment) in enumerate(rows, 1)
    )


def _of(amount: int, first: str = "2026-02", last: str = "2026-06", *references: str) -> Commitment:
    payments = tuple(CommitmentPayment(amount_pico=1, reference=reference, reason="paid") for reference in references)
    return Commitment(amount_pico=amount, first=first, last=last, payments=payments)


@pytest.mark.parametrize(
    ("rows", "set_from", "problem"),
    [
        ([("2026-03", _of(5))], "2026-03", r"commitment.first: 2026-02 is before 2026-03"),
        ([("2026-02", _of(5)), ("2026-04", None), ("2026-05", _of(5))], "2026-05", r"commitment.first: 2026-02"),
        ([("2026-02", _of(5)), ("2026-05", _of(5)), ("2026-04", None)], "2026-04", "terms 2 from 2026-05 on go on"),
        ([("2026-02", _of(5)), ("2026-04", _of(4))], "2026-04", r"commitment.amount: .* less than 0.0"),
        ([("2026-02", _of(5)), ("2026-05", _of(6)), ("2026-04", _of(7))], "2026-04", "commitment.amount"),
        ([("2026-02", _of(5, "2026-02", "2026-06", "bank")), ("2026-04", _of(5))], "2026-04", "payment 'bank'"),
    ],
)  # fmt: skip
def test_a_schedule_that_cannot_be_is_refused(rows: Any, set_from: str, problem: str) -> None:
    with pytest.raises(InvalidTerms, match=problem):
        _schedule(*rows).check(set_from)


@pytest.mark.parametrize(
    "rows",
    [
        [("2026-01", _of(5)), ("2026-04", _of(6)), ("2026-05", _of(6, "2026-02", "2026-09", "bank"))],
        [("2026-02", _of(5)), ("2026-04", None)],
        [("2026-02", _of(5)), ("2026-04", _of(1, "2026-04"))],
        [("2026-02", _of(5)), ("2026-02", _of(4))],
        [("2026-01", _of(5)), ("2026-02", _of(4))],
    ],
)
def test_a_schedule_that_can_be(rows: Any) -> None:
    """Raised, prolonged and paid; ended; followed by another one; corrected before it has begun."""
    for period, _ in rows:
        _schedule(*rows).check(period)


def test_one_that_began_before_schedules_were_checked_can_go_on() -> None:
    schedule = _schedule(("2026-03", _of(5)), ("2026-04", _of(6)))
    schedule.check("2026-04")
    first, second = (schedule.commitment_of(month) for month in ("2026-03", "2026-04"))
    assert schedule.commitment_of("2026-02") is None
    assert first is not None
    assert second is not None
    lines = commitment_lines(first, 1, "2026-03", account_of([], "2026-03"))
    assert [line.exact_pico for line in lines] == [5, -1], "it is invoiced by the first invoice on which it is in force"
    sent = CommitmentLine(invoice_id=new_id(), number="1", n=1, period="2026-03", exact_pico=5)
    drawn = msgspec.structs.replace(sent, n=2, exact_pico=-1)
    more = commitment_lines(second, 9, "2026-04", account_of([sent, drawn], "2026-04"))
    assert [line.exact_pico for line in more] == [1, -5]
