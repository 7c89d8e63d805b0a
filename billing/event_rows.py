"""A usage event as a row of its table."""

from __future__ import annotations

from typing import Any

import msgspec

from billing.usage import UsageEvent

_FIELDS = [name for name in UsageEvent.__struct_fields__ if name not in ("counts", "usage")]


def event_row(event: UsageEvent) -> dict[str, Any]:
    """The event as a row of `usage_event`."""
    row = {name: getattr(event, name) for name in _FIELDS}
    row |= {f"count_{name}": tokens for name, tokens in msgspec.structs.asdict(event.counts).items()}
    return row | event.usage.meters()
