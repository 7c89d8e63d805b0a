"""What it took lately to ask a drafter: it is not asked where that alone is more than its drafts could bring."""

from __future__ import annotations

_SPARED_US = 1000.0
"""A time is believed up to twice what was expected and so many µs more: once, something else may have held it up."""
_MOST_SKIPPED = 512
"""Steps in a row without asking, after which the drafter is asked again: it may have become faster."""


class AskingTime:
    """Of one drafter, in µs of a step."""

    def __init__(self) -> None:
        self.us = 0.0
        self._skipped = 0

    def expected(self) -> float:
        """µs to be weighed before the drafter is asked."""
        return 0.0 if self._skipped >= _MOST_SKIPPED else self.us

    def observe(self, us: float) -> None:
        """It was asked, and took so long."""
        self.us = (self.us + min(us, 2 * self.us + _SPARED_US)) / 2
        self._skipped = 0

    def skip(self) -> None:
        """It would have taken too long in a step."""
        self._skipped += 1
