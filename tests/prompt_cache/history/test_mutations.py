"""The corpus of mutations: of each case, why it missed and where."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.served_models.served_model import load_served_model
from prompt_cache.history.diagnosis import Diagnosis
from storage.database.database import Database
from tests.gateway.conversation.test_tools import LINES
from tests.gateway.tiny_model import make_model_folder
from tests.prompt_cache.history.cache_world import CacheWorld, Models
from tests.prompt_cache.history.mutations import Case, double_cases, named_cases

DEMO = Path(__file__).parents[3] / "models" / "stdlib-qa"
RIGHT = 0.99
DOUBLES = 200
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


async def test_some_of_both(sqlite: Database, models: Models) -> None:
    assert not await judge(sqlite, models, [*named_cases()[::EVERY], *double_cases(8, seed=1)])
