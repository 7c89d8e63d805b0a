"""What every command is made of: the office opened for one run, and a table on the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

from turnpike.admin_services import AdminServices, open_admin_services
from turnpike.settings.settings import Settings

CURRENCY = "USD"
DEFAULT_PROJECT = "default"


def with_admin_services(settings: Settings, work: Callable[[AdminServices], Awaitable[int]]) -> int:
    """Run `work` with the office that the settings describe; its exit status. Raises NoData where there is none."""

    async def run() -> int:
        async with open_admin_services(settings) as admin:
            return await work(admin)

    return asyncio.run(run())


async def currency_of(admin: AdminServices, tenant_id: UUID) -> str:
    """The currency of the tenant's balance; the default if it never had money."""
    balance = await admin.balances.get(tenant_id)
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
