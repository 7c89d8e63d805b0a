"""POST /v1/completions: the response as OpenAI's JSON, whole or in events of the same shape.

Source: https://platform.openai.com/docs/api-reference/completions/object. `cost` and `limited_by` are ours, and
`prompt_cache_diagnostics` is that of chat completions.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from gateway.conversation.output.events import TokenScore
from gateway.conversation.tokenizer import Tokenizer
from gateway.dialects.cache_explanation import CacheExplanation
from gateway.dialects.openai.common_response import (
    DONE,
    CompletionWriter,
    Finish,
    Receipts,
    ResponseIdentity,
    encoder,
    event,
    finishes_of,
    usage_at,
)
from gateway.dialects.openai.completion_usage import CompletionUsage
from gateway.dialects.openai.diagnostics import PromptCacheDiagnostics, cache_explanation, openai_diagnostics
from gateway.dialects.openai.logprobs import TextLogprobs, text_logprobs
from gateway.generation.delivery import ChoiceDelta, Finished


class TextChoice(Struct, frozen=True):
    text: str
    finish_reason: str | None
    index: int
    logprobs: TextLogprobs | None = None
    limited_by: str | UnsetType = UNSET


class TextCompletion(Struct, frozen=True):
    """The whole response, and one event of a streamed one."""

    id: str
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    service_tier: str
    usage: CompletionUsage | UnsetType | None = UNSET
    object: str = "text_completion"
    system_fingerprint: str | None = None
    prompt_cache_diagnostics: PromptCacheDiagnostics | UnsetType = UNSET
    cache_explanation: CacheExplanation | UnsetType = UNSET
    receipts: Receipts = UNSET


class TextWriter(CompletionWriter):
    """Writes one response, whole or as events. `logprobs`: how many likeliest tokens the client asked for, if any."""

    def __init__(
        self, identity: ResponseIdentity, tokenizer: Tokenizer, *, logprobs: int | None, include_usage: bool
    ) -> None:
        super().__init__(identity, tokenizer, include_usage=include_usage)
        self._logprobs = logprobs
        self._prompt: tuple[Sequence[TokenScore], TextLogprobs] | None = None
        """The scores of the last echoed prompt, and what is said of them in each of its choices."""

    def whole(self, deltas: Sequence[ChoiceDelta], end: Finished) -> bytes:
        """The whole response, of one delta for each choice."""
        choices = [self._choice(d, finish) for d, finish in zip(deltas, finishes_of(end.reasons), strict=True)]
        return encoder.encode(self._completion(choices, usage_at(end), end))

    def events(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """An event for each delta."""
        return b"".join(self._event(self._choice(delta, None)) for delta in deltas)

    def finished(self, end: Finished) -> bytes:
        """An event with the finish reason of each choice, the usage if the client asked for it, and `DONE`."""
        events = b"".join(
            self._event(TextChoice("", finish.reason, choice, limited_by=finish.limited_by))
            for choice, finish in enumerate(finishes_of(end.reasons))
        )
        if self._include_usage or end.explanation is not None or end.receipts:
            usage = usage_at(end) if self._include_usage else UNSET
            events += event(self._completion([], usage, end))
        return events + DONE

    def _choice(self, delta: ChoiceDelta, finish: Finish | None) -> TextChoice:
        logprobs = None if self._logprobs is None else self._logprobs_of(delta, self._logprobs)
        if finish is None:
            return TextChoice(delta.text, None, delta.choice, logprobs)
        return TextChoice(delta.text, finish.reason, delta.choice, logprobs, finish.limited_by)

    def _logprobs_of(self, delta: ChoiceDelta, wanted: int) -> TextLogprobs:
        own, prompt = text_logprobs(delta.scores, self._tokenizer, wanted), delta.prompt_scores
        if not prompt:
            return own
        if self._prompt is None or self._prompt[0] is not prompt:
            self._prompt = prompt, text_logprobs(prompt, self._tokenizer, wanted)
        return self._prompt[1].followed_by(own)

    def _event(self, choice: TextChoice) -> bytes:
        return event(self._completion([choice], None if self._include_usage else UNSET))

    def _completion(
        self,
        choices: list[TextChoice],
        usage: CompletionUsage | UnsetType | None,
        end: Finished | None = None,
    ) -> TextCompletion:
        identity, explanation = self._identity, None if end is None else end.explanation
        return TextCompletion(
            id=identity.id,
            created=identity.created,
            model=identity.model,
            choices=tuple(choices),
            service_tier=identity.service_tier,
            usage=usage,
            system_fingerprint=identity.system_fingerprint,
            prompt_cache_diagnostics=openai_diagnostics(explanation) or UNSET,
            cache_explanation=cache_explanation(explanation) or UNSET,
            receipts=UNSET if end is None else end.receipts or UNSET,
        )
