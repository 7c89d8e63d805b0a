"""Faults that the fake makes: as often as it is told, or the next ones by name."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Literal, get_args

Fault = Literal["rate_limit", "conflict", "error", "error_after", "drop", "drop_after"]
"""- `rate_limit`: 429, `conflict`: 409: nothing is done and nothing is kept under the idempotency key.
- `error`: 500 before, `error_after`: 500 after the request was carried out; both are kept under the key.
- `drop`: the connection ends before, `drop_after`: after it was carried out, without an answer."""
FAULTS: tuple[Fault, ...] = get_args(Fault)


class Faults:
    """Chooses a fault for each request. `rates`: how often, of a thousand requests."""

    def __init__(self, rates: Mapping[Fault, int] | None = None, seed: int = 0) -> None:
        self.rates = dict(rates or {})
        self.random = random.Random(seed)  # noqa: S311  # faults, no secrets
        self._next: list[tuple[str, str, Fault]] = []

    def script(self, method: str, path: str, fault: Fault) -> None:
        """Let the next request whose path begins so have this fault."""
        self._next.append((method, path, fault))

    def choose(self, method: str, path: str) -> Fault | None:
        """The fault of a request; None if it has none."""
        for scripted in self._next:
            if method == scripted[0] and path.startswith(scripted[1]):
                self._next.remove(scripted)
                return scripted[2]
        drawn = self.random.randrange(1000)
        for fault, rate in self.rates.items():
            if drawn < rate:
                return fault
            drawn -= rate
        return None
