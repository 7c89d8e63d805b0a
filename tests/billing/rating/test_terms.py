"""Contract terms: rated exactly as an oracle of fractions says, kept as they were, and taken off the right periods."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, literal, update
from sqlalchemy.exc import DBAPIError

from billing.calendar import InvalidPeriod, period_bounds, period_of
from billing.money import PICO, InvalidPrice
from billing.prices import PriceCatalog, PriceVersion
from billing.prices.approval import PriceSheets
from billing.prices.sheets import PriceProposal
from billing.rating.applying import apply_terms, drawn, share, tiered_cost, total
from billing.rating.contract_store import Contracts
from billing.rating.lines import RatedLine
from billing.rating.rated_lines import rated_lines
from billing.rating.storage_hours import Stored, record_storage, storage_lines
from billing.rating.terms import Commitment, ContractTerms, Discount, InvalidTerms, Minimum, Step, Tiers, parse_terms
from billing.settlement.settlement import settle
from billing.tables.rating import contract_terms, storage_event
from billing.usage import InvalidUsage, Usage
from storage.database.base import Count, new_id
from storage.database.database import Database
from tests.billing.money import Tenant
from tests.fast import examples

PERIOD = "2026-11"
EXAMPLES = int(os.environ.get("RATING_EXAMPLES", "150"))
"""`make test-rating` is the long run, of 10,000."""

MODELS = ("a", "b")
prices = st.integers(0, 10**10)


@st.composite
def usage(draw: Any) -> RatedLine:
    units, price = draw(st.integers(0, 10**12)), draw(prices)
    start, end = period_bounds(PERIOD)
    return RatedLine(
        kind="usage",
        description="usage",
        project_id=new_id(),
        model=draw(st.sampled_from(MODELS)),
        meter=draw(st.sampled_from(["uncached", "output"])),
        lane=draw(st.sampled_from(["standard", "batch"])),
        context_from=draw(st.sampled_from([0, 0, 200_000])),
        price_version=1,
        price_micro=price,
        units=units,
        exact_pico=units * price,
        service_start=start,
        service_end=end,
        corrects_period=draw(st.sampled_from([None, None, None, "2026-10"])),
    )


@st.composite
def tiers(draw: Any) -> Tiers:
    bounds = sorted(draw(st.sets(st.integers(1, 2 * 10**12), max_size=3)))
    steps = tuple(Step(draw(prices), bound) for bound in [*bounds, None])
    return Tiers(
        kind=draw(st.sampled_from(["graduated", "volume"])),
        model=draw(st.sampled_from(MODELS)),
        meter="output",
        lane=draw(st.sampled_from(["standard", "batch"])),
        steps=steps,
    )


discounts = st.builds(
    lambda bp, models: Discount(basis_points=bp, models=models),
    st.integers(1, 10_000),
    st.sampled_from([(), ("a",), ("a", "b"), ("c",)]),
)
money = st.integers(1, 10**23)
commitments = st.builds(
    lambda amount, first, last, invoiced: Commitment(amount_pico=amount, first=first, last=last, invoiced=invoiced),
    money, st.sampled_from(["2026-10", "2026-11", "2026-12"]), st.just("2026-12"), st.booleans(),
)  # fmt: skip
terms = st.builds(
    lambda t, d, m, c: ContractTerms(tiers=tuple(t), discounts=tuple(d), minimum=m and Minimum(m), commitment=c),
    st.lists(tiers(), max_size=2, unique_by=lambda each: (each.model, each.lane)),
    st.lists(discounts, max_size=2),
    st.none() | money,
    st.none() | commitments,
)


def steps_oracle(wanted: Tiers, units: int) -> Fraction:
    """What units cost by steps: the integral of the price over them, or the last one's price for all."""
    edges = [0, *(step.up_to for step in wanted.steps if step.up_to is not None)]
    if wanted.kind == "volume":
        return Fraction(units) * wanted.steps[sum(1 for edge in edges[1:] if edge < units)].price_micro
    spans = zip(edges, [*edges[1:], max(units, edges[-1])], wanted.steps, strict=True)
    return sum((Fraction(max(0, min(units, high) - low)) * step.price_micro for low, high, step in spans), Fraction(0))


def oracle(lines: list[RatedLine], wanted: ContractTerms, before: int) -> Fraction:
    """What a period comes to, in fractions and from scratch."""
    by_model: dict[str, Fraction] = dict.fromkeys((*MODELS, "c"), Fraction(0))
    for line in lines:
        by_model[line.model or ""] += Fraction(line.units) * (line.price_micro or 0)
    for each in wanted.tiers:
        mine = [
            line for line in lines
            if line.model == each.model and line.meter == "output" and line.lane == each.lane
            and not line.context_from and not line.corrects_period
        ]  # fmt: skip
        saved = sum(line.exact_pico for line in mine) - steps_oracle(each, sum(line.units for line in mine))
        by_model[each.model] -= max(Fraction(0), saved)
    net = sum(by_model.values(), Fraction(0))
    for off in wanted.discounts:
        part = sum((by_model[model] for model in (off.models or by_model)), Fraction(0)) * off.basis_points / 10_000
        net -= part
    owed = max(net, Fraction(wanted.minimum.amount_pico)) if wanted.minimum else net
    if (committed := wanted.commitment) is not None:
        if committed.first <= PERIOD <= committed.last:
            owed -= max(Fraction(0), min(net, Fraction(committed.amount_pico - before)))
        if committed.invoiced and committed.first == PERIOD:
            owed += committed.amount_pico
    return owed


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(st.lists(usage(), max_size=8), terms, st.integers(0, 10**22))
def test_terms_come_to_what_fractions_say(lines: list[RatedLine], wanted: ContractTerms, before: int) -> None:
    added = apply_terms(lines, wanted, PERIOD, before)
    found = total([*lines, *added])
    # each discount is rounded to a pico-unit, and nothing else is; minimum and commitment may hide or keep that
    assert abs(found - oracle(lines, wanted, before)) <= Fraction(len(wanted.discounts), 2)
    assert [line.kind for line in added] == sorted(
        (line.kind for line in added), key=["discount", "minimum", "commitment"].index
    )
    assert all(line.exact_pico <= 0 for line in added if line.kind == "discount" and total(lines) >= 0 and len(
        wanted.discounts) == 0)  # fmt: skip
    assert apply_terms(lines, ContractTerms(), PERIOD) == []


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(tiers(), st.integers(0, 3 * 10**12))
def test_steps_cost_what_fractions_say(wanted: Tiers, units: int) -> None:
    assert tiered_cost(wanted, units) == steps_oracle(wanted, units)


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(st.integers(-(10**30), 10**30), st.integers(0, 10_000))
def test_a_share_is_half_up(pico: int, basis_points: int) -> None:
    exact = Fraction(abs(pico) * basis_points, 10_000)
    assert abs(share(pico, basis_points)) == (exact + Fraction(1, 2)).__floor__()
    assert share(-pico, basis_points) == -share(pico, basis_points)


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(money, st.lists(st.integers(-(10**20), 10**22), max_size=12))
def test_a_commitment_is_never_drawn_beyond_its_amount(committed: int, months: list[int]) -> None:
    commitment = Commitment(amount_pico=committed, first="2026-01", last="2026-12")
    before = 0
    for n, net in enumerate(months, 1):
        used = drawn(commitment, net, f"2026-{n:02d}", before)
        assert 0 <= used <= max(0, net)
        before += used
    assert before == min(committed, before) <= committed
    assert drawn(commitment, 10**30, "2027-01", 0) == 0


WRITTEN: dict[str, Any] = {
    "tiers": [
        {"kind": "graduated", "model": "stdlib-qa", "meter": "output",
         "steps": [{"price": "1.60", "up_to": 1000}, {"price": "1.20"}]}
    ],
    "discounts": [{"basis_points": 1000}],
    "minimum": {"amount": "0.002"},
    "commitment": {"amount": "0.0026", "first": "2026-11", "last": "2027-10"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tiers": [WRITTEN["tiers"][0] | {"meter": "tokens"}]}, r"tiers\[0\].meter"),
        ({"tiers": [WRITTEN["tiers"][0] | {"lane": "fast"}]}, r"tiers\[0\].lane"),
        ({"tiers": [WRITTEN["tiers"][0] | {"steps": []}]}, r"tiers\[0\].steps"),
        ({"tiers": [WRITTEN["tiers"][0] | {"steps": [{"price": "1", "up_to": 5}]}]}, r"tiers\[0\].steps"),
        ({"tiers": [WRITTEN["tiers"][0] | {"steps": [{"price": "1e3"}]}]}, r"tiers\[0\].steps\[0\].price"),
        ({"tiers": [WRITTEN["tiers"][0] | {"steps": [
            {"price": "1", "up_to": 5}, {"price": "1", "up_to": 5}, {"price": "1"}]}]}, "grow"),
        ({"discounts": [{"basis_points": 0}]}, r"discounts\[0\].basis_points"),
        ({"discounts": [{"basis_points": 10_001}]}, r"discounts\[0\].basis_points"),
        ({"minimum": {"amount": "-1"}}, "minimum.amount"),
        ({"minimum": {"amount": 5}}, "minimum.amount"),
        ({"commitment": {"amount": "5", "first": "2026-13", "last": "2027-01"}}, "commitment"),
        ({"commitment": {"amount": "5", "first": "2027-02", "last": "2027-01"}}, "commitment.last"),
        ({"rebates": []}, "rebates"),
    ],
)  # fmt: skip
def test_terms_that_cannot_be_are_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTerms, match=field):
        parse_terms(WRITTEN | change)


@pytest.mark.slow
async def test_a_contract_over_three_months(database: Database) -> None:
    database.clock = literal(period_bounds("2026-11")[0], Count())
    tenant = await Tenant.rich(database, PICO)
    catalog = PriceCatalog(database)
    contracts = Contracts(database, catalog)
    assert await contracts.put(tenant.id, parse_terms(WRITTEN), "2026-11", by="ann", reason="contract 7") == 1
    assert await contracts.terms_of(tenant.id, "2026-10") == ContractTerms()
    assert await contracts.terms_of(new_id(), "2026-11") == ContractTerms()
    assert await contracts.terms_of(tenant.id, "2027-01") == parse_terms(WRITTEN)

    async def month(period: str, output: int) -> dict[str, list[int]]:
        starts = period_bounds(period)[0]
        event = tenant.event(tenant.request(0), Usage(output=output))
        counts = type(event.counts)(output=output)
        event = type(event)(**{name: getattr(event, name) for name in event.__struct_fields__} | {
            "period": period, "counts": counts, "admitted_at": starts, "finished_at": starts})  # fmt: skip
        assert (await settle(database, catalog, [event])).written == 1
        lines = await rated_lines(database, catalog, tenant.id, period)
        assert lines == await rated_lines(database, catalog, tenant.id, period, source="events")
        found: dict[str, list[int]] = {}
        for line in lines:
            found.setdefault(line.kind, []).append(line.exact_pico)
        return found

    # 2000 tokens at 1.60; the second thousand at 1.20, then 10 % off: 0.00252, all of it committed
    assert await month("2026-11", 2000) == {
        "usage": [3_200_000_000],
        "discount": [-400_000_000, -280_000_000],
        "commitment": [2_600_000_000, -2_520_000_000],
    }
    # 100 tokens: 0.00016 less 10 %; the minimum asks for the rest of 0.002, and 0.00008 of the commitment is left
    assert await month("2026-12", 100) == {
        "usage": [160_000_000],
        "discount": [-16_000_000],
        "minimum": [1_856_000_000],
        "commitment": [-80_000_000],
    }
    assert await month("2027-01", 0) == {"minimum": [2_000_000_000]}
    lines = await rated_lines(database, catalog, tenant.id, "2027-11")
    assert [line.kind for line in lines] == ["minimum"]


async def test_terms_are_kept_as_they_were(database: Database) -> None:
    tenant = await Tenant.rich(database, PICO)
    contracts = Contracts(database, PriceCatalog(database))
    now = period_of(await database.now())
    with pytest.raises(InvalidTerms, match="has passed"):
        await contracts.put(tenant.id, ContractTerms(), "2020-01", by="ann")
    with pytest.raises(InvalidPeriod):
        await contracts.put(tenant.id, ContractTerms(), "soon", by="ann")
    with pytest.raises(InvalidTerms, match="name of who"):
        await contracts.put(tenant.id, ContractTerms(), now, by=" ")
    dear = WRITTEN | {"tiers": [WRITTEN["tiers"][0] | {"steps": [{"price": "1.61"}]}]}
    unknown = WRITTEN | {"tiers": [WRITTEN["tiers"][0] | {"model": "other"}]}
    for wrong, problem in ((dear, "list price of 1.60"), (unknown, "model other has no price")):
        with pytest.raises(InvalidTerms, match=problem):
            await contracts.put(tenant.id, parse_terms(wrong), now, by="ann")
    assert await contracts.list() == []
    await contracts.put(tenant.id, parse_terms(WRITTEN), now, by="ann")
    await contracts.put(tenant.id, ContractTerms(), now, by="bob", reason="back to list prices")
    assert await contracts.terms_of(tenant.id, now) == ContractTerms()
    assert [each.author for each in await contracts.list(tenant.id)] == ["ann", "bob"]
    for statement in (update(contract_terms).values(body="{}"), delete(contract_terms)):
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="immutable"):
                await session.execute(statement)
            await session.rollback()


async def test_storage_by_token_hour(database: Database) -> None:
    tenant = await Tenant.rich(database, PICO)
    catalog, hour = PriceCatalog(database), 3_600_000_000
    rows = dict(tenant.version.rows) | {("storage", "*", 0): 1_080_000}
    for wrong in (rows | {("storage", "*", 0): 1_000_000}, rows | {("storage", "batch", 0): 3600}):
        with pytest.raises(InvalidPrice, match="storage"):
            await PriceSheets(database).put(PriceProposal(model="stdlib-qa", rows=wrong), by="ann")
    sheet = await PriceSheets(database).put(PriceProposal(model="stdlib-qa", rows=rows), by="ann")
    assert sheet.effective_at is not None
    first = -(-sheet.effective_at // hour) * hour
    database.clock = literal(first + 3 * hour, Count())
    catalog.forget()
    stored = [Stored(tenant.id, tenant.project_id, "stdlib-qa", first + n * hour, 10**15 + n) for n in range(3)]
    assert await record_storage(database, catalog, stored[:2]) == 2
    assert await record_storage(database, catalog, stored) == 1
    unpriced = Stored(tenant.id, tenant.project_id, "stdlib-qa", first - 10**6 * hour, 5)
    assert await record_storage(database, catalog, [unpriced]) == 0
    for wrong_hour in (first + 3 * hour, first + 1):
        with pytest.raises(InvalidUsage):
            await record_storage(database, catalog, [Stored(tenant.id, tenant.project_id, "m", wrong_hour, 1)])
    lines = await storage_lines(database, catalog, tenant.id, period_of(first))
    lines += [] if period_of(first) == period_of(first + 2 * hour) else await storage_lines(
        database, catalog, tenant.id, period_of(first + 2 * hour))  # fmt: skip
    units = 3 * 10**15 + 3
    assert sum(line.units for line in lines) == units
    assert total(lines) == Fraction(units, 3600) * 1_080_000
    assert {(line.kind, line.price_micro) for line in lines} == {("storage", 300)}
    version: PriceVersion = await catalog.current("stdlib-qa", first)
    assert version.cost(Usage(uncached=1), "standard") == 400_000
    for statement in (update(storage_event).values(cost_pico=0), delete(storage_event)):
        async with database.transaction() as session:
            with pytest.raises(DBAPIError, match="immutable"):
                await session.execute(statement)
            await session.rollback()
