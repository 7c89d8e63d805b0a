"""What every check of an audit gets: one snapshot of the database, and a list to add findings to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Column, ColumnElement, true
from sqlalchemy.ext.asyncio import AsyncSession

from billing.prices import PriceCatalog
from storage.database.database import Database

Progress = Callable[[str, int, int], None]
"""Called now and then: what is being checked, how many are done, how many there are."""


class Finding(msgspec.Struct, frozen=True):
    """A violated invariant: `what` names it, `subject` is the tenant or request concerned."""

    what: str
    subject: UUID
    detail: str


def _no_progress(_what: str, _done: int, _total: int) -> None:
    pass


class AuditContext(msgspec.Struct):
    """One audit: a session that sees one snapshot, and the findings so far.

    With a `period`, only rows of this billing period are checked, and nothing that has no period, such as balances.
    """

    database: Database
    session: AsyncSession
    prices: PriceCatalog
    period: str | None = None
    progress: Progress = _no_progress
    findings: list[Finding] = []

    def report(self, what: str, subject: UUID, detail: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(what, subject, detail))

    def within(self, period: Column[Any]) -> ColumnElement[bool]:
        """The SQL condition that a row's period is audited."""
        return true() if self.period is None else period == self.period
