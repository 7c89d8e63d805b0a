"""The corpus of mutations: of each case, why it missed and where."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.dialects.cache_explanation import ADVICE
from gateway.metering.miss_prices import price_misses
from gateway.served_models.served_model import load_served_model
from prompt_cache.history.diagnosis import Diagnosis
from storage.database.database import Database
from tests.gateway.conversation.test_tools import LINES
from tests.gateway.tiny_model import make_model_folder
from tests.prompt_cache.history.cache_world import PRICE, CacheWorld, Models
from tests.prompt_cache.history.mutations import (
    Case,
    Step,
    chat,
    double_cases,
    messages,
    named_cases,
    sentence,
    timestamp,
)

DEMO = Path(__file__).parents[3] / "models" / "stdlib-qa"
RIGHT = 0.99
DOUBLES = int(os.environ.get("MUTATION_DOUBLES", "60"))
"""200 in `make test-long`."""
EVERY = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    tooled = make_model_folder(folder / "tools", context=16_384, min_cacheable=128, template=LINES)
    return Models(folder, load_served_model(DEMO), load_served_model(tooled))


@pytest.fixture
async def sqlite(fresh_sqlite_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(fresh_sqlite_url)
    yield opened
    await opened.close()


def problems_of(case: Case, found: Diagnosis) -> list[str]:
    """What is not as expected."""
    told = [(miss.cause, miss.path) for miss in found.misses]
    problems = [
        f"{cause} at {' or '.join(paths) or 'any path'}"
        for cause, paths in case.expected
        if not any(cause == said and (not paths or path in paths) for said, path in told)
    ]
    most = max(found.misses, key=lambda miss: miss.tokens).cause if found.misses else "nothing"
    if len(case.expected) == 1 and not problems and most not in (case.expected[0][0], "cold"):
        problems.append(f"mostly {case.expected[0][0]}, not {most}")
    return [f"{case.name}: expected {problem}; told {told}" for problem in problems]


async def judge(database: Database, models: Models, cases: list[Case]) -> list[str]:
    wrong = []
    for case in cases:
        start = await database.now() - 5_000_000
        record, found = await CacheWorld(database, models.all, start).run(case)
        starts = [found.read, *(miss.end for miss in found.misses)]
        assert [miss.start for miss in found.misses] == starts[:-1], f"{case.name}: each token has one cause"
        assert starts[-1] == record.tokens
        wrong += problems_of(case, found)
    return wrong


@pytest.mark.slow
async def test_every_named_case(sqlite: Database, models: Models) -> None:
    cases = named_cases()
    assert len({case.name for case in cases}) == len(cases) >= 200
    wrong = await judge(sqlite, models, cases)
    assert len(wrong) <= len(cases) * (1 - RIGHT), f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)


@pytest.mark.slow
async def test_two_things_at_once(sqlite: Database, models: Models) -> None:
    cases = list(double_cases(DOUBLES))
    wrong = await judge(sqlite, models, cases)
    assert len(wrong) <= len(cases) * (1 - RIGHT), f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)


@pytest.mark.slow
async def test_some_of_both(sqlite: Database, models: Models) -> None:
    assert not await judge(sqlite, models, [*named_cases()[::EVERY], *double_cases(8, seed=1)])


async def world(database: Database, models: Models) -> CacheWorld:
    return CacheWorld(database, models.all, await database.now() - 5_000_000)


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_the_first_of_its_kind_costs_nothing(sqlite: Database, models: Models, dialect: str) -> None:
    dice, here = random.Random(dialect), await world(sqlite, models)
    for at in range(4):
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": dice.randbytes(900).hex()}]}
        if dialect == "anthropic":
            body["cache_control"] = {"type": "ephemeral"}
        record, found = await here.request(Step(body=body, at=at), dialect)
        assert {miss.cause for miss in found.misses} <= {"cold", "below_minimum"}
        assert found.misses[-1].cause == "cold"
        assert not sum(price.cost_pico for price in price_misses(record, found, PRICE))


async def test_what_is_put_before_one_text_still_diverges(sqlite: Database, models: Models) -> None:
    dice, here = random.Random(1), await world(sqlite, models)
    body = chat(dice, words=300)
    rules, question = body["messages"][0]["content"], body["messages"][1]
    await here.request(Step(body={**body, "messages": [body["messages"][0], question]}), "openai")
    for at in range(1, 4):
        dated = {"role": "system", "content": timestamp(rules, dice)}
        asked = {"role": "user", "content": sentence(dice, 30)}
        _, found = await here.request(Step(body={**body, "messages": [dated, asked]}, at=at), "openai")
        assert (found.misses[0].cause, found.misses[0].path) == ("diverged", "$.messages[0].content")


async def test_what_diverged_names_the_token_that_differs(sqlite: Database, models: Models) -> None:
    dice, here = random.Random(2), await world(sqlite, models)
    before = messages(dice, words=150)
    after = {**before, "messages": [dict(message) for message in before["messages"]]}
    after["messages"][2]["content"] = "Zebra " + after["messages"][2]["content"]
    await here.request(Step(body=before), "anthropic")
    record, found = await here.request(Step(body=after, at=5), "anthropic")
    miss = found.misses[0]
    span = next(span for span in record.spans if span.path == "$.messages[2].content")
    assert (miss.cause, miss.start, miss.path, miss.differs_at) == ("diverged", 0, span.path, found.common)
    assert span.start <= found.common < span.end


async def test_a_change_in_a_marked_text_is_one_miss(sqlite: Database, models: Models) -> None:
    dice, here = random.Random(3), await world(sqlite, models)
    said = sentence(dice, 900).split(" ")

    def asked(text: str) -> dict[str, object]:
        part = {"type": "text", "text": text, "prompt_cache_breakpoint": {"mode": "explicit"}}
        return {"model": "m", "messages": [{"role": "user", "content": [part]}]}

    first, _ = await here.request(Step(body=asked(" ".join(said))), "openai")
    assert first.entries
    said[600] = "Zebra"
    _, found = await here.request(Step(body=asked(" ".join(said)), at=5), "openai")
    (miss, *rest) = [miss for miss in found.misses if miss.cause != "cold"]
    assert (miss.cause, miss.start, miss.differs_at, rest) == ("diverged", 0, found.common, [])
    assert miss.end >= first.entries[0].tokens
    assert miss.path == "$.messages[0].content[0].text"


async def test_a_lease_that_was_not_wanted_has_its_price(sqlite: Database, models: Models) -> None:
    body, here = messages(random.Random(4), words=150), await world(sqlite, models)
    await here.request(Step(body=body), "anthropic")
    record, found = await here.request(Step(body=body, at=5, control="no-cache"), "anthropic")
    leased = found.misses[0]
    assert (leased.cause, leased.start, leased.lease) == ("no_read", 0, "5m")
    assert price_misses(record, found, PRICE)[0].cost_pico == leased.tokens * (500_000 - 40_000)
    record, found = await here.request(Step(body=body, at=900, control="no-cache"), "anthropic")
    assert not sum(price.cost_pico for price in price_misses(record, found, PRICE)), "no lease was alive"


def test_advice_on_no_store_says_where_it_stays() -> None:
    assert "stays in the device's memory" in ADVICE["no_store"]
