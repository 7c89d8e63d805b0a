"""The topics that others can be told of, and which of them a pattern means."""

from __future__ import annotations

from billing.budgets.use import THRESHOLD
from billing.invoices import notices
from billing.settlement import OVERDRAWN

TOPICS = (
    OVERDRAWN,
    THRESHOLD,
    notices.DRAFTED,
    notices.FINALIZED,
    notices.PARTIALLY_PAID,
    notices.PAID,
    notices.VOIDED,
    notices.UNCOLLECTIBLE,
    notices.CREDITED,
)


def fits(pattern: str, topic: str) -> bool:
    """Whether a pattern (`invoice.paid`, `invoice.*`, `*`) means this topic."""
    return pattern in ("*", topic) or (pattern.endswith(".*") and topic.startswith(pattern[:-1]))
