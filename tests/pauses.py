"""A test that failed while the machine stood still is run again, and the run says so.

Leases, heartbeats and time limits are promises of a machine that runs. A virtual machine may get no processor for some
seconds; then a lease of 0.3 s ends although nothing is wrong. Bounds stay as they are, and a test that fails without
such a pause has failed: it is never run again.
"""

from __future__ import annotations

import contextlib

import pytest
from _pytest.runner import runtestprotocol

from tests.awake import Awake

LEAST_S = 0.2
"""A test that failed is run again if the machine stood still for so long while it ran."""
MOST_RUNS = 3

_OUT_OF_TIME = "from pytest-timeout"
"""What a test says that reached its time limit. Its timer is not set twice, so such a test is not run again."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Again())


class _Again:
    """Runs tests where they run, and says where the reports come together which of them ran again."""

    def __init__(self) -> None:
        self.awake = Awake()
        self.told: list[tuple[str, float, str]] = []

    def pytest_sessionstart(self) -> None:
        self.awake.__enter__()

    def pytest_sessionfinish(self) -> None:
        self.awake.__exit__(None, None, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        earlier: list[tuple[float, str]] = []
        while True:
            before = self.awake.paused
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            paused = self.awake.paused - before
            failed = [report for report in reports if report.failed]
            out_of_time = any(_OUT_OF_TIME in report.longreprtext for report in failed)
            if not failed or paused < LEAST_S or out_of_time or len(earlier) == MOST_RUNS - 1:
                break
            earlier.append((round(paused, 1), _message(failed[0])))
            with contextlib.suppress(Exception):  # what the test has left may be in any state
                item.session._setupstate.teardown_exact(None)  # nothing that it shares with others is kept
        reports[0].earlier_runs = earlier  # type: ignore[attr-defined]  # it travels with the report from a worker
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.told += [(report.nodeid, *run) for run in getattr(report, "earlier_runs", ())]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.told:
            terminalreporter.section("run again, for the machine stood still", yellow=True)
            for name, paused, said in self.told:
                terminalreporter.write_line(f"{name}: {paused} s, {said}")


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else report.longreprtext.strip()).partition("\n")[0]
