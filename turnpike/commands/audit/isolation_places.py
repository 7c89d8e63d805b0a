"""Where the KV of a victim's prompts lies when an isolation audit attacks: as it came, in one tier alone, or restored.

What a project sends first lies in device memory. Other prompts of the same project drive it out: into host memory, and
out of that too, so that it is left on disk alone if it was sent twice. How many prompts that takes is found out from
outside: `cache-status` tells a project from which tier its own prompt was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from turnpike.command_line import CommandError

TIERS = ("hbm", "dram", "nvme")
SETTLE_S = 1.5
"""After which what was sent twice is on disk."""
MOST_FILLERS = 1024
AT_ONCE = {"hbm": 2, "dram": 12}
"""Prompts that the victim sends before the attack on them; the rest of the memory is the attacker's."""
_TWICE = 2

Ask = Callable[[], Awaitable[str]]
"""Sends a prompt; returns the tier from which all that was cached was read, nothing for none or several."""


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Place:
    """Where the victim's prompts lie. `tier`: what alone they are read from, None for wherever they are.

    `batch`: how many the victim sends, each `uses` times, before `move` and the attack on them; None: all. `output`:
    how many tokens are asked for; of more than one it is measured how quickly they follow the first.
    """

    name: str
    tier: str | None = None
    uses: int = 1
    batch: int | None = 1
    move: Callable[[], Awaitable[None]] = _nothing
    output: int = 1


AS_IT_IS = Place("")
DRAFTS = Place("drafts", output=96)
"""Where they were answered, too: replicas remember outputs, and guess by them what the next ones will be."""


def after(name: str, command: str) -> Place:
    """Wherever they are after a shell command, such as one that restarts the deployment."""

    async def move() -> None:
        await asyncio.sleep(SETTLE_S)
        process = await asyncio.create_subprocess_shell(command)
        if await process.wait():
            raise CommandError(f"the command failed with status {process.returncode}: {command[:200]}")

    return Place(name, None, _TWICE, None, move)


async def alone_in(tier: str, victim: Callable[[], Ask]) -> Place:
    """In one tier alone. `victim`: makes what sends one prompt of the victim's project each time. What drives prompts
    out is as long, and sent as often, so that it is worth as much. Raises CommandError if no prompt comes to lie
    there."""
    uses = _TWICE if tier == "nvme" else 1
    if tier == TIERS[0]:
        return Place(tier, tier, uses, AT_ONCE[tier])
    fillers = 4
    while True:
        ask = victim()
        for _ in range(uses):
            await ask()
        await _fill(victim, fillers, uses)
        found = await ask()
        if found == tier:
            break
        too_far = found in TIERS and TIERS.index(found) > TIERS.index(tier)
        if too_far or 2 * fillers > MOST_FILLERS:
            raise CommandError(
                f"--tier {tier}: after {fillers} other prompts one was read from {found or 'no tier alone'}; audit a "
                "deployment with less --kv-memory and --dram-memory, both enough for a few dozen prompts"
            )
        fillers *= 2
    if tier == TIERS[-1]:
        fillers *= 2  # they cannot be driven farther

    async def move() -> None:
        await _fill(victim, fillers, uses)

    return Place(tier, tier, uses, AT_ONCE.get(tier), move)


async def _fill(victim: Callable[[], Ask], fillers: int, uses: int) -> None:
    if uses > 1:
        await asyncio.sleep(SETTLE_S)
    await send_all([victim() for _ in range(fillers)], uses)


async def send_all(asks: Sequence[Callable[[], Awaitable[object]]], uses: int) -> None:
    """Send these prompts one after the other, each so often."""
    for ask in asks:
        for _ in range(uses):
            await ask()
