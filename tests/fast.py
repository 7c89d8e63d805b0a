"""What of the tests is for `make test-fast`, and a watch that it stays fast.

`slow` marks a test, or a parameter of one, that a change can do without until `make test`. So does `slow_tests.txt`,
which lists the tests that took long when they were measured; `make slow-tests` writes it. Two more things make a run of
the rest short: on PostgreSQL it has only the tests that say `both_databases`, the others run on SQLite alone; and with
hypothesis's profile `fast` properties are tried on a fifth of their examples.

`long` marks a case that `make test` leaves to `make test-long`: a further sample of what others show. A test that runs
on both kinds of database has its case on one of them left to that, unless it holds an invariant or says
`both_databases`. Which one follows from its id, so that about half of the tests and cases of a folder are on each.

Marks rot, so `--cpu-limit SECONDS` fails a run in which a test without a mark takes longer than that. CPU time of the
process, not time on the clock, so that a busy machine does not fail it; what a test makes PostgreSQL do is not in it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES, FAST_EXAMPLES = 50, 20
"""Of 100, which `make test-long` tries: examples that are the same each time find a fault once."""
ALL_CPU_S = 90.0
"""What the tests of a fast run may take together before it names the dearest. On busy cores the same work takes up to
half as much again, so that this only says and does not fail."""
_SHOWN = 15
SLOW_TESTS = Path(__file__).with_name("slow_tests.txt")
_INVARIANTS = Path(__file__).parents[1] / "docs" / "invariants.md"
_ALWAYS_S = 1.0
"""A test that takes no longer is never listed where it holds an invariant, or is the quickest of its file."""

# How long an example takes on the clock is the machine's affair: one that stands still for a second has no bug. What a
# test may take is for pytest's time limit and for the watch below.
settings.register_profile(
    "default",
    settings.get_profile("default"),
    deadline=None,
    max_examples=EXAMPLES,
    derandomize=True,  # what must pass before a change lands does not fail by chance
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fast", settings.get_profile("default"), max_examples=FAST_EXAMPLES)
# `make test-long` looks for examples that nobody has seen yet.
settings.register_profile("explore", settings.get_profile("default"), max_examples=100, derandomize=False)

_cpu_s = pytest.StashKey[float]()
_listed = pytest.StashKey[frozenset[str]]()


def measured_slow() -> frozenset[str]:
    """The tests that took long when they were measured, by their ids without `tests/`."""
    return frozenset(SLOW_TESTS.read_text().splitlines())


def slow_of(took: Mapping[str, float], limit: float) -> list[str]:
    """Of tests by id, with the CPU time that each took: those to list as slow."""
    invariants = _INVARIANTS.read_text()
    quickest: dict[str, str] = {}
    for name in sorted(took, key=took.__getitem__, reverse=True):
        quickest[name.split("::")[0]] = name
    kept = {name for name in took if f"`{name.split('[')[0]}`" in invariants} | set(quickest.values())
    return sorted(
        _short_id(name)
        for name, seconds in took.items()
        if seconds > limit and (name not in kept or seconds > _ALWAYS_S)
    )


def _short_id(nodeid: str) -> str:
    return nodeid.removeprefix("tests/")


def examples(most: int) -> int:
    """How many examples a property is tried on that wants `most`, for `@settings`: all of them in a long run."""
    return -(-most * settings().max_examples // 100)


def only_fast(*kept: object, of: Iterable[object]) -> list[object]:
    """The values `of` a parameter, of which all but the `kept` are slow. A tuple is a value for each of several."""
    values = list(of)
    assert all(value in values for value in kept), f"{kept} are not all of {values}"
    return [value if value in kept else _marked(value, pytest.mark.slow) for value in values]


def only_some(*kept: object, of: Iterable[object], every: int = 0) -> list[object]:
    """The values `of` a parameter, of which a fast run tries the `kept`, `make test` also one of `every` so many, and
    `make test-long` all. A tuple is a value for each of several parameters."""
    values = list(of)
    assert all(value in values for value in kept), f"{kept} are not all of {values}"

    def marks(number: int) -> list[pytest.MarkDecorator]:
        return [pytest.mark.slow] if every and number % every == 0 else [pytest.mark.slow, pytest.mark.long]

    return [value if value in kept else _marked(value, *marks(number)) for number, value in enumerate(values)]


def _marked(value: object, *marks: pytest.MarkDecorator) -> object:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)


KINDS = ("sqlite", "postgresql")


def kind_of(nodeid: str) -> str:
    """The kind of database on which `make test` runs a test for which either will do; the id of one of its two."""
    for kind in KINDS:
        nodeid = nodeid.replace(kind, "")
    return KINDS[zlib.crc32(nodeid.encode()) % 2]


def _holds_an_invariant(nodeid: str) -> bool:
    parts = nodeid.split("[", maxsplit=1)[0].split("::")
    return not _named_in_invariants().isdisjoint({"::".join(parts[:2]), "::".join(parts)})


@cache
def _named_in_invariants() -> frozenset[str]:
    return frozenset(_INVARIANTS.read_text().split("`")[1::2])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark as slow what was measured to be, and what runs on PostgreSQL as well and does not ask for both; as long what
    runs on the other kind of database in `make test`."""
    if _short_id(item.nodeid) in item.config.stash[_listed]:
        item.add_marker(pytest.mark.slow)
    values = item.callspec.params if hasattr(item, "callspec") else {}
    kind = values.get("database_url", values.get("empty_again", ""))
    if kind == "" or item.get_closest_marker("both_databases") is not None:
        return
    if kind == "postgresql":
        item.add_marker(pytest.mark.slow)
    if kind != kind_of(item.nodeid) and not _holds_an_invariant(item.nodeid):
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for `make test-long`, but where a test is named on the command line."""
    if config.getoption("--every-case") or any("::" in word for word in config.args):
        return
    left = [item for item in items if item.get_closest_marker("long")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-case", action="store_true", help="also what is left to `make test-long`")
    parser.addoption("--cpu-limit", type=float, help="seconds of CPU time that no test's call may pass")
    parser.addoption(
        "--write-slow-tests", type=float, help="list the tests that take more seconds of CPU time than that as slow"
    )


def pytest_configure(config: pytest.Config) -> None:
    limit, written = config.getoption("--cpu-limit"), config.getoption("--write-slow-tests")
    config.stash[_listed] = measured_slow() if written is None else frozenset()
    if written is not None:
        limit = float("inf")
    if limit is not None:
        config.pluginmanager.register(_Watch(limit, written))


class _Watch:
    """Measures each test where it runs, and judges where the reports come together."""

    def __init__(self, limit: float, written: float | None) -> None:
        self.limit = limit
        self.written = written
        self.took: dict[str, float] = {}
        self.with_fixtures: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._timed(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._timed(item))

    def _timed(self, item: pytest.Item) -> Iterator[None]:
        began = time.process_time()
        try:
            return (yield)
        finally:
            item.stash[_cpu_s] = time.process_time() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if call.when in {"setup", "call"}:
            report.cpu_s = item.stash.get(_cpu_s, 0.0)  # travels from a worker with all that a report has
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when in {"setup", "call"}:
            self.with_fixtures[report.nodeid] = self.with_fixtures.get(report.nodeid, 0.0) + report.cpu_s
        if report.when == "call":
            self.took[report.nodeid] = report.cpu_s

    def _too_slow(self) -> list[str]:
        return [name for name, took in self.took.items() if took > self.limit]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._too_slow() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.written is not None and self.with_fixtures and not hasattr(session.config, "workerinput"):
            SLOW_TESTS.write_text("".join(f"{name}\n" for name in slow_of(self.with_fixtures, self.written)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total, slow = sum(self.with_fixtures.values()), self._too_slow()
        terminalreporter.write_line(f"the tests took {total:.0f} s of CPU time, of {ALL_CPU_S:.0f} s that they may")
        if slow:
            terminalreporter.section("too slow for a fast run", red=True)
            terminalreporter.write_line(f"over {self.limit:.0f} s of CPU time each: make it faster or mark it slow")
            self._show(terminalreporter, slow)
        if total > ALL_CPU_S and self.written is None:
            terminalreporter.section("a fast run is slow by now", yellow=True)
            terminalreporter.write_line("the dearest tests: make some faster or mark them slow")
            self._show(terminalreporter, self.took)

    def _show(self, terminalreporter: pytest.TerminalReporter, names: Iterable[str]) -> None:
        for name in sorted(names, key=self.took.__getitem__, reverse=True)[:_SHOWN]:
            terminalreporter.write_line(f"{self.took[name]:7.1f} s  {name}")
