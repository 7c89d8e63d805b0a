"""A process to be killed: appends events to a spool for ever and prints the id of each that was acknowledged."""

from __future__ import annotations

import asyncio
import sys

from billing.prices import PriceVersion, in_every_lane
from billing.spool.spool import Spool
from billing.usage import Usage
from storage.database.base import new_id
from tests.billing.money import event, loose_request

VERSION = PriceVersion(1, "m", "USD", in_every_lane({"uncached": 1, "output": 1}))


async def _append_for_ever(spool: Spool) -> None:
    while True:
        record = event(loose_request(new_id()), VERSION, Usage(uncached=10, output=1))
        await spool.append(record)
        print(record.id, flush=True)  # noqa: T201


async def main(folder: str) -> None:
    spool = Spool(folder, "child", rotate_bytes=20_000)
    await asyncio.gather(*(_append_for_ever(spool) for _ in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
