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
from billing.rating.applying import apply_terms, share, tiered_cost, total
from billing.rating.contract_store import Contracts
from billing.rating.hourly_meters import Stored, hourly_lines, record_hours
from billing.rating.lines import RatedLine
from billing.rating.rated_lines import rated_lines
from billing.rating.terms import ContractTerms, Discount, InvalidTerms, Minimum, Step, Tiers, parse_terms
from billing.settlement.settlement import settle
from billing.tables.prices import contract_terms, storage_event
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
terms = st.builds(
    lambda t, d, m: ContractTerms(tiers=tuple(t), discounts=tuple(d), minimum=m and Minimum(m)),
    st.lists(tiers(), max_size=3),
    st.lists(discounts, max_size=4),
    st.none() | money,
)
"""Those that cannot be set any more too: several tiers for the same units, discounts of more than 100 %."""


def steps_oracle(wanted: Tiers, units: int) -> Fraction:
    """What units cost by steps: the integral of the price over them, or the last one's price for all."""
    edges = [0, *(step.up_to for step in wanted.steps if step.up_to is not None)]
    if wanted.kind == "volume":
        return Fraction(units) * wanted.steps[sum(1 for edge in edges[1:] if edge < units)].price_micro
    spans = zip(edges, [*edges[1:], max(units, edges[-1])], wanted.steps, strict=True)
    return sum((Fraction(max(0, min(units, high) - low)) * step.price_micro for low, high, step in spans), Fraction(0))


def oracle(lines: list[RatedLine], wanted: ContractTerms) -> dict[str, Fraction]:
    """What each model's usage comes to before the minimum, in fractions and from scratch."""
    by_model: dict[str, Fraction] = dict.fromkeys((*MODELS, "c"), Fraction(0))
    for line in lines:
        by_model[line.model or ""] += Fraction(line.units) * (line.price_micro or 0)
    priced = set()
    for each in wanted.tiers:
        if (each.model, each.lane) in priced:
            continue
        priced.add((each.model, each.lane))
        mine = [
            line for line in lines
            if line.model == each.model and line.meter == "output" and line.lane == each.lane
            and not line.context_from and not line.corrects_period
        ]  # fmt: skip
        saved = sum(line.exact_pico for line in mine) - steps_oracle(each, sum(line.units for line in mine))
        by_model[each.model] -= max(Fraction(0), saved)
    for model in by_model:
        off = sum(one.basis_points for one in wanted.discounts if not one.models or model in one.models)
        by_model[model] *= 1 - Fraction(min(off, 10_000), 10_000)
    return by_model


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(st.lists(usage(), max_size=8), terms)
def test_terms_come_to_what_fractions_say(lines: list[RatedLine], wanted: ContractTerms) -> None:
    added = apply_terms(lines, wanted, PERIOD)
    net = total(line for line in [*lines, *added] if line.kind != "minimum")
    exact = sum(oracle(lines, wanted).values(), Fraction(0))
    assert abs(net - exact) <= Fraction(len(MODELS), 2), "what is taken of a model is rounded to a pico-unit once"
    if wanted.minimum is not None:
        assert total([*lines, *added]) == max(net, wanted.minimum.amount_pico)
    assert [line.kind for line in added] == sorted((line.kind for line in added), key=["discount", "minimum"].index)
    assert apply_terms(lines, ContractTerms(), PERIOD) == []


@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(st.lists(usage(), max_size=8), terms)
def test_terms_never_take_more_than_there_is(lines: list[RatedLine], wanted: ContractTerms) -> None:
    wanted = ContractTerms(tiers=wanted.tiers, discounts=wanted.discounts)
    for model in MODELS:
        mine = [line for line in lines if line.model == model]
        off = total(apply_terms(mine, wanted, PERIOD))
        assert -total(mine) <= off <= 0
    assert total(apply_terms(lines, wanted, PERIOD)) == sum(
        total(apply_terms([line for line in lines if line.model == model], wanted, PERIOD)) for model in MODELS
    ), "what is taken of a model hangs on no other model"


@pytest.mark.parametrize("several", [(6000, 7000), (5000, 5000, 1), (10_000, 10_000)])
def test_discounts_take_all_at_most(several: tuple[int, ...]) -> None:
    """0.88 less 60 and 70 percent is nothing, and no money that goes back. So does half of one pico-unit, twice."""
    start, end = period_bounds(PERIOD)
    for pico in (880_000_000_000, 1):
        line = RatedLine(kind="usage", description="", model="a", meter="output", lane="standard", units=pico,
                         price_micro=1, exact_pico=pico, service_start=start, service_end=end)  # fmt: skip
        wanted = ContractTerms(discounts=tuple(Discount(basis_points=points) for points in several))
        added = apply_terms([line], wanted, PERIOD)
        assert total([line, *added]) == 0
        assert all(one.exact_pico < 0 for one in added)


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


WRITTEN: dict[str, Any] = {
    "tiers": [
        {"kind": "graduated", "model": "stdlib-qa", "meter": "output",
         "steps": [{"price": "1.60", "up_to": 1000}, {"price": "1.20"}]}
    ],
    "discounts": [{"basis_points": 1000}],
    "minimum": {"amount": "0.002"},
    "commitment": {"amount": "0.0026", "first": "2026-11", "last": "2027-10"},
}  # fmt: skip
PAYMENT = {"amount": "5", "reference": "bank 1", "reason": "came before the contract"}
PAID = {"amount": "10", "first": "2026-11", "last": "2027-10", "invoiced": False, "payments": [PAYMENT]}


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
        ({"discounts": [{"basis_points": 6000}, {"basis_points": 7000}]}, r"discounts\[1\].basis_points: .* 13000"),
        ({"discounts": [{"basis_points": 9000, "models": ["a"]}, {"basis_points": 500}, {"basis_points": 501}]},
         r"discounts\[2\].basis_points: the discounts of a add up to 10001"),
        ({"tiers": WRITTEN["tiers"] * 2}, r"tiers\[1\]: tiers\[0\] price stdlib-qa output standard"),
        ({"minimum": {"amount": "-1"}}, "minimum.amount"),
        ({"minimum": {"amount": 5}}, "minimum.amount"),
        ({"commitment": {"amount": "5", "first": "2026-13", "last": "2027-01"}}, "commitment"),
        ({"commitment": {"amount": "5", "first": "2027-02", "last": "2027-01"}}, "commitment.last"),
        ({"commitment": {"amount": "5", "first": "2027-01", "last": "2037-01"}}, "commitment.last: .* 120 months"),
        ({"commitment": PAID | {"amount": "4"}}, "commitment.payments: .* more than the commitment"),
        ({"commitment": PAID | {"payments": [PAYMENT, PAYMENT]}}, r"payments\[1\].reference: 'bank 1' is there twice"),
        ({"commitment": PAID | {"payments": [PAYMENT | {"reason": ""}]}}, r"commitment.payments\[0\].reason"),
        ({"commitment": PAID | {"payments": [PAYMENT | {"amount": "0"}]}}, r"commitment.payments\[0\].amount"),
        ({"rebates": []}, "rebates"),
    ],
)  # fmt: skip
def test_terms_that_cannot_be_are_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTerms, match=field):
        parse_terms(WRITTEN | change)


def test_discounts_of_different_models_do_not_add_up() -> None:
    """Only what falls on the same model does."""
    apart = [{"basis_points": 6000, "models": ["a"]}, {"basis_points": 7000, "models": ["b"]}]
    terms = parse_terms({"discounts": apart})
    assert [(one.basis_points, one.models) for one in terms.discounts] == [(6000, ("a",)), (7000, ("b",))]


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

    # 2000 tokens at 1.60; the second thousand at 1.20, then 10 % off
    assert await month("2026-11", 2000) == {"usage": [3_200_000_000], "discount": [-400_000_000, -280_000_000]}
    # 100 tokens: 0.00016 less 10 %; the minimum asks for the rest of 0.002
    assert await month("2026-12", 100) == {
        "usage": [160_000_000],
        "discount": [-16_000_000],
        "minimum": [1_856_000_000],
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
    assert await record_hours(database, catalog, stored[:2]) == 2
    assert await record_hours(database, catalog, stored) == 1
    unpriced = Stored(tenant.id, tenant.project_id, "stdlib-qa", first - 10**6 * hour, 5)
    assert await record_hours(database, catalog, [unpriced]) == 0
    for wrong_hour in (first + 3 * hour, first + 1):
        with pytest.raises(InvalidUsage):
            await record_hours(database, catalog, [Stored(tenant.id, tenant.project_id, "m", wrong_hour, 1)])
    lines = await hourly_lines(database, catalog, tenant.id, period_of(first))
    lines += [] if period_of(first) == period_of(first + 2 * hour) else await hourly_lines(
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
