"""Why the prompt cache missed, in Anthropic's words, with our own explanation beside them.

Source: the types `Diagnostics` and `CacheMiss…` of the official client. Theirs compares with the one response that the
client names, and says which part of the request changed first; a null reason means that nothing it cached did.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.cache_explanation import CacheExplanation, explanation_of
from gateway.generation.request_history import Explanation

MissType = Literal[
    "model_changed",
    "system_changed",
    "tools_changed",
    "messages_changed",
    "previous_message_not_found",
    "unavailable",
]
_TYPES: dict[str, MissType] = {
    "model": "model_changed",
    "system": "system_changed",
    "tools": "tools_changed",
    "messages": "messages_changed",
    "partition": "unavailable",
}


class CacheMissReason(Struct, frozen=True):
    """`cache_missed_input_tokens` is there where something changed: what would have been read else, and was not."""

    type: MissType
    cache_missed_input_tokens: int | UnsetType = UNSET


class AnthropicDiagnostics(Struct, frozen=True):
    """`cache_explanation` is ours."""

    cache_miss_reason: CacheMissReason | None
    cache_explanation: CacheExplanation | None = None


def anthropic_diagnostics(explanation: Explanation | None) -> AnthropicDiagnostics | None:
    """The field `diagnostics` of a message; None for a client who did not ask."""
    if explanation is None:
        return None
    ours = None if explanation.finding is None else explanation_of(explanation.finding)
    return AnthropicDiagnostics(_reason(explanation), ours)


def _reason(explanation: Explanation) -> CacheMissReason | None:
    comparison = explanation.comparison
    match comparison.state:
        case "none":
            return None
        case "not_found":
            return CacheMissReason("previous_message_not_found")
        case "unavailable":
            return CacheMissReason("unavailable")
    if not comparison.changed:
        return None
    kind = _TYPES[comparison.changed]
    return CacheMissReason(kind, UNSET if kind == "unavailable" else comparison.missed)
