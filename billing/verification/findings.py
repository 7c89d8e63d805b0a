"""What an audit looks at, and what it finds."""

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
"""Told now and then what is being checked, how many are done, and of how many."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it must be; `what` names the invariant, `subject` the tenant or request."""

    what: str
    subject: UUID
    detail: str


def _silent(_what: str, _done: int, _of: int) -> None:
    """Tell nobody."""


class AuditContext(msgspec.Struct):
    """One audit: a session that sees one snapshot, and the findings so far.

    `period`: only what belongs to this billing period is looked at; what has no period, such as balances, is not.
    """

    database: Database
    session: AsyncSession
    book: PriceCatalog
    period: str | None = None
    progress: Progress = _silent
    findings: list[Finding] = []

    def found(self, what: str, subject: UUID, detail: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(what, subject, detail))

    def within(self, period: Column[Any]) -> ColumnElement[bool]:
        """The condition that a row's period is looked at."""
        return true() if self.period is None else period == self.period
