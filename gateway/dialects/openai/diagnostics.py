"""Why the prompt cache missed, in OpenAI's words.

Source: the type `PromptCacheDiagnostics` of the official client. Where nothing changed and nothing was read, as after
the end of a lease, OpenAI has no word but `unavailable`; our own explanation beside it says why.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.cache_explanation import CacheExplanation, explanation_of
from gateway.generation.request_history import Explanation

MissReason = Literal["model_changed", "prompt_cache_key_changed", "tools_changed", "input_changed"]
_REASONS: dict[str, MissReason] = {
    "model": "model_changed",
    "partition": "prompt_cache_key_changed",
    "tools": "tools_changed",
    "system": "input_changed",
    "messages": "input_changed",
}


class PromptCacheDiagnostics(Struct, frozen=True):
    """The last three fields are there with `cache_miss`."""

    type: Literal["cache_hit", "cache_miss", "comparison_response_not_found", "unavailable"]
    reason: MissReason | UnsetType = UNSET
    cache_missed_tokens: int | UnsetType = UNSET
    comparison_reusable_tokens: int | UnsetType = UNSET


def openai_diagnostics(explanation: Explanation | None) -> PromptCacheDiagnostics | None:
    """The field `prompt_cache_diagnostics` of a response; None for a client who did not ask."""
    if explanation is None:
        return None
    comparison = explanation.comparison
    if comparison.state == "not_found":
        return PromptCacheDiagnostics("comparison_response_not_found")
    if comparison.state != "found":
        return PromptCacheDiagnostics("unavailable")
    if comparison.changed:
        reason = _REASONS[comparison.changed]
        return PromptCacheDiagnostics("cache_miss", reason, comparison.diverged, comparison.reusable)
    return PromptCacheDiagnostics("cache_hit" if comparison.read else "unavailable")


def cache_explanation(explanation: Explanation | None) -> CacheExplanation | None:
    """The field `cache_explanation` of a response, which is ours; None for a client who did not ask."""
    return None if explanation is None or explanation.finding is None else explanation_of(explanation.finding)
