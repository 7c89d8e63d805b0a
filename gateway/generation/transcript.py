"""Turns the tokens of one choice into text, or into a parser's events, up to a stop string, and counts how many are
shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from gateway.conversation.detokenizer import Detokenizer, StopStrings
from gateway.conversation.output.events import (
    NO_TOKEN,
    OutputEvent,
    OutputParser,
    ScoredTokens,
    TextDelta,
    TokenScore,
)
from protocol.requests import TokenLogprob


class Transcript:
    """Detokenizes one choice, looks for stop strings, and counts tokens.

    `tokens`: output tokens taken in, up to the last token of a stop string. `shown`: those of them whose text has been
    given out completely. The text of the first `min_tokens` tokens is not searched for stop strings.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        end_tokens: Collection[int],
        min_tokens: int = 0,
        *,
        offset: int = 0,
        parser: OutputParser | None = None,
    ) -> None:
        """`offset`: characters of the answer before this output. `parser`: reads reasoning and calls; then the output
        is in `events`, and stop strings are looked for in its text alone."""
        self._parser = parser
        self._events: list[OutputEvent] = []
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._end_tokens = end_tokens
        self._min_tokens = min_tokens
        self._ends: deque[tuple[int, int]] = deque()
        self._scores: deque[tuple[int, TokenScore]] = deque()
        self._offset = offset
        self._decoded = 0
        self._given = 0
        self.tokens = 0
        self.shown = 0
        self.reasoning = 0
        """Output tokens of reasoning, with the markers around it."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; what follows it does not count."""
        return self._stops.matched is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found."""
        return self._stops.matched

    def feed(self, tokens: Sequence[int], scores: Sequence[TokenLogprob] = ()) -> str:
        """Take in tokens; returns the text that can be shown now."""
        shown: list[str] = []
        for index, token in enumerate(tokens):
            if self.stopped:
                break
            self.tokens += 1
            if scores and token not in self._end_tokens:
                score = TokenScore(token, self._offset + self._decoded, scores[index])
                self._scores.append((self.tokens, score))
            if self._parser is not None and self._detokenizer.pending and self._parser.marks(token):
                # A character that a marker cuts off belongs to what stands before it.
                cut = self._detokenizer.finish()
                self._decoded += len(cut)
                self._parse(self._parser.feed(NO_TOKEN, cut))
            text = "" if token in self._end_tokens else self._detokenizer.feed(token)
            self._decoded += len(text)
            if self._parser is not None:
                before, said = self._parser.reasoning, len(self._events)
                self._parse(self._parser.feed(token, text))
                self.reasoning += before or self._parser.reasoning
                if not (self._parser.holding or self._stops.holding or self._detokenizer.pending):
                    self.shown = self.tokens
                # A marker before a call belongs to the call, one behind reasoning to the reasoning.
                if len(self._events) > said or before or self.stopped:
                    self._place_scores()
                continue
            # a token whose last character is incomplete is shown with the next character
            self._ends.append((self._decoded + self._detokenizer.pending, self.tokens))
            shown.append(text if self.tokens <= self._min_tokens else self._stops.feed(text))
        return self._give("".join(shown))

    def events(self) -> tuple[OutputEvent, ...]:
        """What the output says beyond what was returned before, where it has a parser, with the log probabilities of
        its tokens."""
        events, self._events = self._events, []
        return tuple(events)

    def scores(self) -> tuple[TokenScore, ...]:
        """The log probabilities of the tokens that became shown since the last call, where it has no parser.

        Those of a stop string are billed, and included, although their text is not shown.
        """
        ready: list[TokenScore] = []
        if self._parser is not None:
            return ()
        until = self.tokens if self.stopped else self.shown
        while self._scores and self._scores[0][0] <= until:
            ready.append(self._scores.popleft()[1])
        return tuple(ready)

    def finish(self) -> str:
        """The text held back, when no token follows."""
        if self._parser is not None:
            self._parse(self._parser.finish())
            self._say(self._stops.finish())
            self.shown = self.tokens
            self._place_scores()
            return ""
        rest = self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
        text = self._give(rest)
        self.shown = self.tokens
        return text

    def _parse(self, events: Sequence[OutputEvent]) -> None:
        """Take in events; a stop string within their text ends the output."""
        for event in events:
            if self.stopped:
                return
            if isinstance(event, TextDelta):
                self._say(self._stops.feed(event.text))
            else:
                self._say(self._stops.finish())
                self._events.append(event)

    def _place_scores(self) -> None:
        if self._scores:
            self._events.append(ScoredTokens(tuple(score for _, score in self._scores)))
            self._scores.clear()

    def _say(self, text: str) -> None:
        if text:
            self._events.append(TextDelta(text))

    def _give(self, text: str) -> str:
        self._given += len(text)
        while self._ends and self._ends[0][0] <= self._given:
            self.shown = self._ends.popleft()[1]
        return text
