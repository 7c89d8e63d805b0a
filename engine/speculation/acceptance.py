"""How often a request's drafts were right, by position: learnt of each request alone, so that no tenant's text changes
the speed of another's."""

from __future__ import annotations

from collections.abc import Sequence

_PRIOR_WEIGHT = 2.0
"""Drafts that what the drafter says itself counts as."""
_KEPT = 7 / 8
"""Of what was seen, with each further draft."""
LEAST, LEAST_SEEN, PAUSE = 0.2, 3.0, 32
"""A request whose first drafts are right less often than LEAST, after so many, gets none for PAUSE steps."""


class Acceptance:
    """The drafts of one request by one drafter."""

    __slots__ = ("_accepted", "_seen", "_until")

    def __init__(self, positions: int) -> None:
        self._seen = [0.0] * positions
        self._accepted = [0.0] * positions
        self._until = 0

    def chances(self, prior: float, tokens: int) -> Sequence[float]:
        """How likely each of so many drafts is right if those before it are. `prior`: what the drafter says."""
        return [(self._accepted[at] + _PRIOR_WEIGHT * prior) / (self._seen[at] + _PRIOR_WEIGHT) for at in range(tokens)]

    def paused(self, decoded: int) -> bool:
        """Whether drafting pauses, `decoded` output tokens into the request."""
        return decoded < self._until

    def verified(self, drafted: int, accepted: int, decoded: int) -> None:
        """A step verified so many drafts, of which the first `accepted` were right."""
        for at in range(min(drafted, accepted + 1)):
            self._seen[at] = self._seen[at] * _KEPT + 1
            self._accepted[at] = self._accepted[at] * _KEPT + (at < accepted)
        if self._seen[0] > LEAST_SEEN and self._accepted[0] < LEAST * self._seen[0]:
            self._until = decoded + PAUSE
            self._seen[0] = self._accepted[0] = 0.0  # then it has another chance
