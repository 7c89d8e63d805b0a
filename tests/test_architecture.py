"""The house's rules, held: who may import whom, what each module is for, tenancy in every query, no float in money."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts import structure_page

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "turnpike": {"gateway", "engine", "prompt_cache", "billing", "storage", "migrations"},
    "gateway": {"prompt_cache", "billing", "storage", "engine.protocol"},
    "engine": {
        "prompt_cache.keys",
        "prompt_cache.blocks",
        "prompt_cache.block_groups",
        "prompt_cache.model_digest",
        "storage.disk_space",
    },
    "prompt_cache": {"storage"},
    "billing": {"storage"},
    "storage": set[str](),
    "migrations": {
        "storage",
        "billing.tables.budgets",
        "billing.tables.chain",
        "billing.tables.exports",
        "billing.tables.invoices",
        "billing.tables.journals",
        "billing.tables.periods",
        "billing.tables.platform",
        "billing.tables.prices",
        "billing.tables.rating",
        "billing.tables.reconciliation",
        "billing.tables.seals",
        "billing.tables.money",
        "billing.tables.webhooks",
        "gateway.tenancy.tables",
    },
}
HEAVY = {"torch", "triton", "transformers"}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
# Where a query may be written. Elsewhere in the gateway, rows come from a repository or from billing.
QUERY_MODULES = ("storage/", "billing/", "migrations/", "gateway/tenancy/repositories.py")
TENANT_TABLES = ("usage_event", "usage_fact", "hold_batch", "balance", "grant", "project", "api_key")


def modules(room: str = "") -> Iterator[Path]:
    for name in [room] if room else ROOMS:
        yield from sorted((ROOT / name).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(structure_page.parsed(path)))


def calls(path: Path, *functions: str) -> Iterator[ast.Call]:
    """The calls of these functions, which are written as in `text` or `sa.text`."""
    last = {name.split(".")[-1] for name in functions}
    for node in nodes(path):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            if called in last and ast.unparse(node.func) in functions:
                yield node


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno} imports relatively; name the room"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_along_the_arrows(room: str) -> None:
    wrong = []
    for path in modules(room):
        for line, name in imports(path):
            top = name.split(".")[0]
            if top not in ROOMS or top == room:
                continue
            if not any(name == allowed or name.startswith(allowed + ".") for allowed in ROOMS[room]):
                wrong.append(f"{relative(path)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_only_the_engine_imports_the_heavy_libraries() -> None:
    wrong = [
        f"{relative(path)}:{line} imports {name}"
        for path in modules()
        if not relative(path).startswith("engine/")
        for line, name in imports(path)
        if name.split(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_is_named_for_nothing() -> None:
    wrong = [relative(path) for path in modules() if FORBIDDEN_NAMES & set(path.with_suffix("").parts)]
    assert not wrong, wrong


def test_every_module_says_what_it_is_for() -> None:
    wrong = [relative(p) for p in modules() if p.stat().st_size and not ast.get_docstring(structure_page.parsed(p))]
    assert not wrong, wrong


def test_structure_page_says_what_the_modules_say() -> None:
    assert structure_page.PAGE.read_text() == structure_page.page(), "run: make docs"


def test_billing_has_no_float() -> None:
    wrong = []
    for path in modules("billing"):
        source = path.read_text()
        lines = source.splitlines()
        for node in nodes(path):
            is_float = (isinstance(node, ast.Constant) and isinstance(node.value, float)) or (
                isinstance(node, ast.Name) and node.id == "float"
            )
            # A path may be divided by a name; money may not be divided by anything but //.
            divides = (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Div)
                and not isinstance(node.right, ast.Constant | ast.JoinedStr)
            )
            if (is_float or divides) and "# not money" not in lines[node.lineno - 1]:
                wrong.append(f"{relative(path)}:{node.lineno} {lines[node.lineno - 1].strip()}")
    assert not wrong, "\n".join(wrong)


def functions(path: Path) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    lines = path.read_text().splitlines()
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, "\n".join(lines[node.lineno - 1 : node.end_lineno])


def test_queries_are_written_where_tenancy_is_applied() -> None:
    wrong = [
        f"{relative(path)}:{node.lineno}"
        for path in modules()
        if not relative(path).startswith(QUERY_MODULES)
        for node in calls(path, "select", "text", "sa.text")
    ]
    assert not wrong, "\n".join(wrong)


def test_queries_name_the_tenant() -> None:
    """A function that reads or writes a tenant's rows names the tenant, or says `# all tenants:` and why."""
    wrong = []
    for path in modules():
        if not relative(path).startswith(QUERY_MODULES) or relative(path).startswith("migrations/"):
            continue
        for node, source in functions(path):
            touches = any(
                re.search(rf"\b(from|join|into|update)\s+\"?{table}\b", source, re.I) for table in TENANT_TABLES
            )
            if touches and "tenant" not in source:
                wrong.append(f"{relative(path)}:{node.lineno} {node.name}")
    assert not wrong, "\n".join(wrong)


def test_sql_is_never_formatted_from_values() -> None:
    """`text(f"…")` is how a value becomes SQL: every text() takes a constant."""
    wrong = [
        f"{relative(path)}:{node.lineno}"
        for path in modules()
        for node in calls(path, "text", "sa.text", "sqlalchemy.text")
        if any(isinstance(argument, ast.JoinedStr | ast.BinOp) for argument in node.args)
        and relative(path).split("/")[0] != "migrations"
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_of_the_workplace_is_named() -> None:
    wrong = [
        f"{relative(path)}:{number}"
        for path in modules()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"/(work|root|home)/", line)
    ]
    assert not wrong, wrong
