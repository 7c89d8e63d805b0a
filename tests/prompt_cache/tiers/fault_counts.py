"""How many faults of each kind were injected into cache records, and what became of them; printed at the end of a run.

`wrong` is a payload that is not what was written. A test stops at the first one, so that a run that passes had none.
"""

from __future__ import annotations

from collections import Counter

COUNTS: dict[str, Counter[str]] = {}
"""By fault, then by what became of it."""


def count(fault: str, outcome: str, number: int = 1) -> None:
    """So many more faults of this kind ended so."""
    COUNTS.setdefault(fault, Counter())[outcome] += number


def lines() -> list[str]:
    """A line for each kind of fault."""
    return [
        f"{fault:<34} {sum(outcomes.values()):>7,}  "
        + ", ".join(f"{outcome} {number:,}" for outcome, number in sorted(outcomes.items()))
        for fault, outcomes in COUNTS.items()
    ]
