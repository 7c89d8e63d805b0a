"""What flows are thought to have got on other replicas since these were last heard: as much as in the time before.

A replica says once a second what flows got from it. Until it is heard again, a flow that it serves looks here as if it
had got nothing since, and its long prompts are computed before those of a flow that waits on this replica alone; so of
the order in which prompts are computed the second that is not yet known would be a large part. It is only thought, so
nobody is charged for it: who is admitted, and the guarantees, do not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.scheduling.flows import Flow

LATELY_S = 2.0
"""So long what a replica said says something about what it does now: two of its beats."""


class Pace:
    """Keeps `lately` of flows: the µs that they got from other replicas between the last two times that each was heard.

    Nothing is expected of a replica that was heard once, or not for `LATELY_S`.
    """

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, list[tuple[Flow, int]]]] = {}
        """By replica: when it was heard last, and what flows are thought to have got from it since."""
        self._until = math.inf
        """When the first of them will have been silent for too long, or sooner: it is looked for again then."""

    def heard(self, replica: str, got: Iterable[tuple[Flow, int]], now: float) -> None:
        """A replica gave flows so many µs since it was heard before; `now` in seconds since the Unix epoch."""
        self.lapse(now)
        goes_on = self._take_back(replica)
        expected = list(got) if goes_on else []
        for flow, cost in expected:
            flow.lately += cost
        self._said[replica] = now, expected
        self._until = min(self._until, now + LATELY_S)

    def lapse(self, now: float) -> None:
        """Expect nothing more of replicas that have been silent for too long."""
        if now <= self._until:
            return
        for replica in [replica for replica, (at, _) in self._said.items() if at < now - LATELY_S]:
            self._take_back(replica)
        self._until = min((at for at, _ in self._said.values()), default=math.inf) + LATELY_S

    def _take_back(self, replica: str) -> bool:
        """Whether something had been heard of it lately; what was thought to have come since counts no more."""
        said = self._said.pop(replica, None)
        if said is None:
            return False
        for flow, cost in said[1]:
            flow.lately -= cost
        return True
