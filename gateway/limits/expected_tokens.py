"""What a request will probably use: how much of its prompt is not in the cache, and how long its answer gets.

Limits reserve what is expected and settle what it was. Where nothing is known, the whole prompt is expected.
"""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

_CONVERSATIONS, _PROJECTS = 50_000, 10_000
_NEW_ANSWER = 1024
"""Output tokens that are expected of a project's first answer, if it may be as long."""
_LEAST_ANSWER = 64
_MARGIN = 2.0
"""An answer is expected to be at most so many times as long as the mean."""
_WEIGHT = 0.1
"""Of the newest answer in the mean."""


class ExpectedTokens:
    """What was learned from the requests of this gateway worker."""

    def __init__(self) -> None:
        self._cached: OrderedDict[bytes, int] = OrderedDict()
        """Conversation -> tokens of its last prompt, where some of that was read from the cache."""
        self._answers: OrderedDict[UUID, float] = OrderedDict()
        """Project -> the mean of its answers' lengths."""

    def uncached(self, conversation: bytes, prompt_tokens: int) -> int:
        """How many input tokens of a prompt are expected to count."""
        return max(0, prompt_tokens - self._cached.get(conversation, 0))

    def output(self, project: UUID, most: int) -> int:
        """How many output tokens are expected, of `most`."""
        mean = self._answers.get(project)
        return min(most, _NEW_ANSWER if mean is None else max(_LEAST_ANSWER, round(_MARGIN * mean)))

    def learn_input(self, conversation: bytes, prompt_tokens: int, uncached: int) -> None:
        """Remember how much of a prompt counted."""
        if uncached < prompt_tokens:
            self._cached[conversation] = prompt_tokens
            self._cached.move_to_end(conversation)
            if len(self._cached) > _CONVERSATIONS:
                self._cached.popitem(last=False)
        else:
            self._cached.pop(conversation, None)

    def learn_output(self, project: UUID, tokens: int) -> None:
        """Remember the length of an answer."""
        mean = self._answers.get(project, float(tokens))
        self._answers[project] = mean + _WEIGHT * (tokens - mean)
        self._answers.move_to_end(project)
        if len(self._answers) > _PROJECTS:
            self._answers.popitem(last=False)
