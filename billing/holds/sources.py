"""What a hold is reserved from beside the tenant's balance, and how rows say it as text."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec


class HoldSources(msgspec.Struct, frozen=True):
    """`windows` of budgets, from each of which the whole amount is reserved; and `grants` for one model or project,
    with how much of the amount (in pico-units) is reserved from each and not from the balance."""

    windows: tuple[UUID, ...] = ()
    grants: Mapping[UUID, int] = {}

    @property
    def granted_pico(self) -> int:
        """How much of the amount is reserved from grants."""
        return sum(self.grants.values())

    def encode(self) -> str:
        """As rows of holds and of budget charges have it: "" for none, else hexadecimal ids of windows, then of grants,
        each of these with "=" and its pico-units; separated by commas."""
        grants = (f"{grant.hex}={pico}" for grant, pico in self.grants.items())
        return ",".join([*(window.hex for window in self.windows), *grants])

    @staticmethod
    def decode(text: str) -> HoldSources:
        """The inverse of `encode`. Raises ValueError."""
        if not text:
            return NO_SOURCES
        items = [item.partition("=") for item in text.split(",")]
        return HoldSources(
            tuple([UUID(id) for id, equals, _ in items if not equals]),
            {UUID(id): int(pico) for id, equals, pico in items if equals},
        )


NO_SOURCES = HoldSources()
"""Those of a hold that is reserved from the balance alone."""
