"""Lanes as OpenAI's API calls them: `service_tier`, asked for in a request and said in its answer."""

from __future__ import annotations

from collections.abc import Mapping

from engine.protocol.requests import Lane
from gateway.failures import InvalidRequest

TIER_OF: Mapping[str, str] = {"interactive": "priority", "standard": "default", "batch": "flex"}
"""What an answer and a report say."""
_LANE_OF: Mapping[str, Lane] = {
    "auto": "standard",
    "default": "standard",
    "standard_only": "standard",
    "priority": "interactive",
    "flex": "batch",
}


def lane_of(tier: str | None) -> Lane:
    """The lane that a request asks for, the standard one if it does not say. Raises InvalidRequest."""
    if tier is None:
        return "standard"
    lane = _LANE_OF.get(tier)
    if lane is None:
        raise InvalidRequest(
            f"$.service_tier: there is no tier {tier[:40]!r}; tiers are {', '.join(_LANE_OF)}.",
            path="$.service_tier",
            code="invalid_value",
        )
    return lane
