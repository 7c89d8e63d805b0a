"""What every command is made of: the office opened for one run, and a table on the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

from turnpike.office import Office, opened
from turnpike.settings import Settings

CURRENCY = "USD"
DEFAULT_PROJECT = "default"


def with_office(settings: Settings, work: Callable[[Office], Awaitable[int]]) -> int:
    """Run `work` with the office that the settings describe; its exit status. Raises NoData where there is none."""

    async def run() -> int:
        async with opened(settings) as office:
            return await work(office)

    return asyncio.run(run())


async def currency_of(office: Office, tenant_id: UUID) -> str:
    """The currency of the tenant's balance; the default if it never had money."""
    balance = await office.balances.get(tenant_id)
    return balance.currency if balance else CURRENCY


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a header, numbers to the right."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *lines]) for i in range(len(header))]
    for line in [list(header), *lines]:
        cells = [
            cell.rjust(width) if cell.replace(".", "").replace("-", "").isdigit() else cell.ljust(width)
            for cell, width in zip(line, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
