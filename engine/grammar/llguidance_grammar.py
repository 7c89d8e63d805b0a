"""Grammars by llguidance: JSON schema, regular expression, choice of texts, and Lark or GBNF grammars."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
import torch
from llguidance.gbnf_to_lark import any_to_lark
from numpy.typing import NDArray

from engine.grammar.closing import MOST_TOKENS, Closer
from engine.grammar.guide import InvalidGrammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_REMEMBERED = 256
_LONGEST_MESSAGE = 300
_WHITESPACE = r"(\n[ ]{0,32}|[ ])?"
"""Between the parts of JSON: a space, or a line feed and its indentation; white space never fills the budget."""
_REFRESH, _VAIN = 16, 3
"""How often, in tokens, an output looks how far its end is, and how often in vain until it looks half as often each
time: a search that finds nothing takes longest, and holds up the step."""
_NEAR_LEAST, _NEAR_MARGIN = 32, 16
_NEAR_MOST = 2 * MOST_TOKENS + _NEAR_MARGIN


class LlguidancePlace:
    """A matcher as the search for an end sees it."""

    __slots__ = ("matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher

    def copy(self) -> LlguidancePlace:
        return LlguidancePlace(self.matcher.deep_copy())

    @property
    def accepting(self) -> bool:
        return self.matcher.is_accepting()

    @property
    def complete(self) -> bool:
        return self.matcher.is_stopped() and not self.matcher.is_error()

    def forced(self) -> list[int]:
        return self.matcher.compute_ff_tokens()

    def allowed(self, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.matcher.is_error() or self.matcher.is_stopped():
            return candidates[:0]
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        chosen: NDArray[np.int64] = candidates[(bits[candidates >> 3] >> (candidates & 7)) & 1 == 1]
        return chosen

    def advance(self, tokens: list[int]) -> bool:
        return self.matcher.consume_tokens(tokens)


class LlguidanceGuide:
    """A matcher, and the shortest end that is known from where it stands once the limit is near."""

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        closer: Closer,
        ends: Sequence[int],
        ending: list[int] | None,
        words: int,
    ) -> None:
        self.ended = matcher.is_stopped()
        self.failure: str | None = None
        self._matcher = matcher
        self._closer = closer
        self._ends = ends
        self._words = words
        self._distance = MOST_TOKENS if ending is None else len(ending)
        self._plan = ending
        self._taken = 0
        self._left = 0
        self._look_at = _REFRESH
        self._in_vain = 0
        self._hopeless = False

    def allow(self, row: torch.Tensor) -> None:
        """Write which tokens may come next, a bit each, into an int32 row on the host."""
        # The library takes a row of its vocabulary's very size; logits are padded beyond it.
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), self._words * row.element_size())
        row[self._words :] = 0
        if self._matcher.is_error() or not bool(row.any()):
            self.failure = _first_line(self._matcher.get_error()) or "nothing can follow"
            row.fill_(-1)

    def settle(self, token: int, left: int) -> int:
        """The drawn token, or the next one of a known end if after it `left` − 1 more could not complete the output."""
        self._left = left
        if self.failure is not None or self._hopeless or left > self._near():
            self._plan = None
            return token
        place = LlguidancePlace(self._matcher)
        if self._plan is None or not self._closer.leads(place, self._plan, left):
            self._plan = self._closer.end(place, left)
        if self._plan is None:
            self._hopeless = True  # the limit will cut it off
            return token
        if token in self._ends or token in self._plan[:1]:
            return token
        after = place.copy()
        rest = self._rest(after, self._plan, left - 1) if after.advance([token]) else None
        if rest is None:
            if self._plan and not len(place.allowed(np.array(self._plan[:1]))):
                # The same text in other tokens than those that are forced from here.
                other = self._closer.end(place, left)
                self._plan = self._plan if other is None else other
            return self._plan[0] if self._plan else self._ends[0]
        self._plan = [token, *rest]
        return token

    def _rest(self, after: LlguidancePlace, plan: list[int], most: int) -> list[int] | None:
        """An end from one token further: what led there before often still does."""
        for known in (plan, plan[1:]):
            if self._closer.leads(after, known, most):
                return known
        return self._closer.end(after, most, quick=True)

    def take(self, token: int) -> None:
        """The token was put out."""
        self._taken += 1
        if not self._matcher.consume_token(token):
            self.failure = self.failure or _first_line(self._matcher.get_error())
            return
        self.ended = self._matcher.is_stopped()
        self._plan = self._plan[1:] if self._plan and self._plan[0] == token else None
        # Where even the farthest end would not be near, it does not matter how far it is.
        if self._taken >= self._look_at and self._left <= _NEAR_MOST and not self.ended:
            end = self._closer.end(LlguidancePlace(self._matcher), MOST_TOKENS)
            self._distance = MOST_TOKENS if end is None else len(end)
            self._hopeless = self._hopeless and end is None
            self._in_vain = 0 if end is not None else self._in_vain + 1
            self._look_at = self._taken + (_REFRESH << max(0, self._in_vain - _VAIN))

    def _near(self) -> int:
        return max(_NEAR_LEAST, 2 * self._distance + _NEAR_MARGIN)


class LlguidanceGrammar:
    """A matcher at its beginning, to be copied, and an end from there. `words`: of 32 tokens each, the vocabulary."""

    def __init__(self, matcher: llguidance.LLMatcher, closer: Closer, ends: Sequence[int], words: int) -> None:
        self._matcher = matcher
        self._closer = closer
        self._ends = ends
        self._words = words
        self._ending = closer.end(LlguidancePlace(matcher), MOST_TOKENS)

    def guide(self) -> LlguidanceGuide:
        """A guide at the beginning."""
        return LlguidanceGuide(self._matcher.deep_copy(), self._closer, self._ends, self._ending, self._words)


class LlguidanceGrammars:
    """Grammars over a model's own tokenizer, which is read when the first one is asked for."""

    def __init__(self, folder: Path, vocabulary: int, ends: Sequence[int]) -> None:
        """`vocabulary` is the model's, `ends` its end tokens."""
        self._folder = folder
        self._vocabulary = vocabulary
        self._ends = [end for end in ends if 0 <= end < vocabulary]
        self._guard = threading.Lock()
        self._known: OrderedDict[str, LlguidanceGrammar | InvalidGrammar] = OrderedDict()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._closer: Closer | None = None

    def compiled(self, text: str) -> LlguidanceGrammar:
        """The grammar that `Generate.grammar` says; what was wrong is remembered too. Raises InvalidGrammar."""
        with self._guard:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
        if known is None:
            try:
                known = self._compile(text)
            except InvalidGrammar as error:
                known = error
            except Exception as error:  # the library raises what it likes, down to Exception itself
                known = InvalidGrammar(_first_line(str(error)) or type(error).__name__)
            with self._guard:
                self._known[text] = known
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        if isinstance(known, InvalidGrammar):
            raise InvalidGrammar(str(known))
        return known

    def _compile(self, text: str) -> LlguidanceGrammar:
        tokenizer, closer = self._vocabulary_of_model()
        matcher = llguidance.LLMatcher(tokenizer, _grammar(text), log_level=0)
        if matcher.is_error():
            raise InvalidGrammar(_first_line(matcher.get_error()))
        matcher.compute_bitmask()  # which finds out that nothing can come
        if matcher.is_error() or (matcher.is_stopped() and not matcher.is_accepting()):
            raise InvalidGrammar("no text fulfils it")
        return LlguidanceGrammar(matcher, closer, self._ends, -(-self._vocabulary // 32))

    def _vocabulary_of_model(self) -> tuple[llguidance.LLTokenizer, Closer]:
        with self._guard:
            if self._tokenizer is None or self._closer is None:
                path = self._folder / "tokenizer.json"
                try:
                    definition = path.read_text(encoding="utf-8")
                    tokenizer = llguidance.LLTokenizer(definition, n_vocab=self._vocabulary, eos_token=self._ends)
                except (OSError, ValueError) as error:
                    raise InvalidGrammar(f"this model has no tokenizer that a grammar could use: {error}") from error
                tokens = range(self._vocabulary)
                self._closer = Closer(
                    (token, tokenizer.decode_bytes([token]))
                    for token in tokens
                    if not tokenizer.is_special_token(token)
                )
                self._tokenizer = tokenizer
            return self._tokenizer, self._closer


def end_tokens(folder: Path) -> tuple[int, ...]:
    """The model's end tokens: its generation config's, else its config's."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        fields = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        inner = fields.get("text_config")
        value = (fields | inner if isinstance(inner, dict) else fields).get("eos_token_id")
        tokens = tuple(token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int))
        if tokens:
            return tokens
    return ()


def _grammar(text: str) -> str:
    """llguidance's form of our one-key object. Raises InvalidGrammar."""
    try:
        ((kind, body),) = json.loads(text).items()
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidGrammar(_first_line(str(error))) from error
    return _by_kind(kind, body)


def _by_kind(kind: str, body: Any) -> str:
    match kind:
        case "json_schema":
            options: JsonCompileOptions = {
                "whitespace_pattern": _WHITESPACE,
                "whitespace_flexible": True,
                "lenient": False,
            }
            return llguidance.LLMatcher.grammar_from_json_schema(body, overrides=options)
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(body)
        case "choice":
            if not body:
                raise InvalidGrammar("there is nothing to choose from")
            # One expression, whose size does not matter to the parser as that of a rule with as many branches would.
            return llguidance.LLMatcher.grammar_from_regex("|".join(map(re.escape, body)))
        case "grammar":
            return llguidance.LLMatcher.grammar_from_lark(any_to_lark(body))
    raise InvalidGrammar(f"there is no kind of grammar named {kind!r}")


def _first_line(message: str) -> str:
    """What is said before the library describes its own state."""
    return " ".join(message.partition("<state>")[0].split())[:_LONGEST_MESSAGE]
