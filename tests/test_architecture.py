"""The structure keeps its rules, and each rule names a violation that is planted in a small tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import module_page
from tests import architecture
from tests.module_sizes import modules_of_another_size

ROOT = Path(__file__).resolve().parent.parent
Rule = Callable[[Path], list[str]]

PLANTED: dict[Rule, tuple[dict[str, str], str]] = {
    architecture.imports_against_the_arrows: (
        {"storage/database/rows.py": "from billing.money import Money\n"},
        "storage/database/rows.py:1 imports billing.money.Money",
    ),
    architecture.imports_against_the_order: (
        {"engine/layers/norm.py": "from engine.server import journal\n"},
        "engine/layers/norm.py:1 imports engine.server.journal, which comes after engine.layers",
    ),
    architecture.cycles_below_folders: (
        {
            "engine/scheduling/__init__.py": "",
            "engine/scheduling/request.py": "from engine.scheduling.fairness.flows import Flow\n",
            "engine/scheduling/fairness/__init__.py": "",
            "engine/scheduling/fairness/flows.py": "from engine.scheduling.request import Request\n",
        },
        "engine.scheduling.fairness imports itself through ['request']",
    ),
    architecture.too_many_loose_modules: (
        {f"storage/module{number}.py": "" for number in range(13)},
        "storage: " + ", ".join(sorted(f"module{number}.py" for number in range(13))),
    ),
    architecture.heavy_imports_outside_the_engine: (
        {"gateway/app.py": "import torch\n"},
        "gateway/app.py:1 imports torch",
    ),
    architecture.other_ways_to_the_devices: (
        {"engine/core/engine.py": "from engine.execution.model_runner import ModelRunner\n"},
        "engine/core/engine.py:1 imports engine.execution.model_runner.ModelRunner",
    ),
    architecture.modules_named_for_nothing: ({"billing/ledger/utils.py": ""}, "billing/ledger/utils.py"),
    architecture.modules_without_a_purpose: ({"billing/money.py": "UNIT = 1\n"}, "billing/money.py"),
    architecture.floats_in_money: (
        {"billing/money.py": "def half(amount):\n    return amount / 2\n"},
        "billing/money.py:2 return amount / 2",
    ),
    architecture.queries_outside_their_modules: (
        {"gateway/app.py": "rows = select(balance)\n"},
        "gateway/app.py:1",
    ),
    architecture.queries_without_a_tenant: (
        {
            "billing/reports/sums.py": (
                "from billing.tables.money import usage_event\n"
                "def total(session):\n"
                "    return session.scalar(select(usage_event.c.cost))\n"
            )
        },
        "billing/reports/sums.py:2 total",
    ),
    architecture.second_connections_in_a_transaction: (
        {
            "billing/accounts/grants.py": (
                "async def put_in(self, session: AsyncSession) -> None:\n    session.add(await self._database.now())\n"
            )
        },
        "billing/accounts/grants.py:1 put_in",
    ),
    architecture.changes_without_an_entry: (
        {
            "billing/accounts/budgets.py": (
                "from billing.tables.money import budget\n"
                "async def raise_all(session, tenant):\n"
                "    await session.execute(update(budget).values(limit_pico=7))\n"
            )
        },
        "billing/accounts/budgets.py:2 raise_all",
    ),
    architecture.values_formatted_into_sql: (
        {"billing/money.py": 'rows = text(f"select {name}")\n'},
        "billing/money.py:1",
    ),
    architecture.paths_of_a_workplace: ({"billing/money.py": 'PATH = "/home/me/data"\n'}, "billing/money.py:1"),
    architecture.unmirrored_test_folders: (
        {"tests/billing/lost/__init__.py": "", "tests/billing/lost/test_it.py": ""},
        "tests/billing/lost mirrors no billing/lost/",
    ),
}
"""For each rule a tree that breaks it, and what the rule says of that tree."""


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    wrong = rule(ROOT)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_the_rule_names_a_planted_violation(rule: Rule, tmp_path: Path) -> None:
    files, violation = PLANTED[rule]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert rule(tmp_path) == [violation]


def test_every_rule_is_held() -> None:
    rules = {
        function
        for name, function in vars(architecture).items()
        if callable(function)
        and not name.startswith("_")
        and getattr(function, "__annotations__", {}).get("return") == "list[str]"
    }
    assert rules == set(PLANTED)


def test_module_page_says_what_the_modules_say() -> None:
    assert module_page.PAGE.read_text() == module_page.page(), "run: make docs"


def test_modules_have_the_usual_size_or_a_reason() -> None:
    wrong = modules_of_another_size(ROOT)
    assert not wrong, "\n".join(wrong)


def test_a_module_of_another_size_is_named(tmp_path: Path) -> None:
    code = "".join(f"x{number} = {number}\n" for number in range(50))
    files = {
        "billing/__init__.py": "",
        "billing/small.py": "x = 1\n",
        "billing/listed.py": "x = 1\n",
        "billing/grown.py": code,
        "billing/tables.py": "x = 1\n",
        "billing/long.py": code + "\n" * 400,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    small = {"a reason": ["billing/listed.py", "billing/grown.py"]}
    assert modules_of_another_size(tmp_path, small, {"billing/gone.py": "a reason"}) == [
        "billing/small.py: 1 lines of code and no reason",
        "billing/grown.py: listed as small, and is not",
        "billing/long.py: 450 lines and no reason",
        "billing/gone.py: listed as long, and is not",
    ]
