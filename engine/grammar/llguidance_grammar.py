"""The grammars of one model by llguidance, compiled once and remembered."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import llguidance

from engine.grammar.closing_search import MOST_TOKENS, run
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.guide import InvalidGrammar
from engine.grammar.llguidance_guide import LlguidanceGuide, LlguidancePosition, SharedGrammarState

_REMEMBERED = 256
_REMEMBERED_BYTES = 512 * 1024 * 1024
_USUAL_BYTES = 1024 * 1024


_BYTES_PER_S = 32 * 1024 * 1024
"""What states of the lexer take that are made in a second of CPU time: 13 MiB in the worst case that was measured."""
_FAILED_S = 60.0
"""For so long a grammar that was too slow in use is refused: the machine may have been the reason."""


class LlguidanceGrammar:
    """A matcher at its beginning, to be copied."""

    def __init__(self, matcher: llguidance.LLMatcher, shared: SharedGrammarState, size: int) -> None:
        """`size`: bytes that it takes, as far as is known."""
        self._size = size
        self._matcher = matcher
        self._shared = shared

    @property
    def size(self) -> int:
        """Bytes that it takes, with the states that its outputs have added to it, at most."""
        return self._size + int(self._shared.spent * _BYTES_PER_S)

    @property
    def worn(self) -> bool:
        """Whether it must be compiled anew before it is used again."""
        return self._shared.worn or (self._shared.failure is not None and self.failure is None)

    @property
    def failure(self) -> str | None:
        """Why it was given up while it was in use, not long ago."""
        recent = time.monotonic() - self._shared.failed_at < _FAILED_S
        return self._shared.failure if recent else None

    def guide(self) -> LlguidanceGuide:
        """A guide at the beginning."""
        return LlguidanceGuide(self._matcher.deep_copy(), self._shared)


class LlguidanceGrammars:
    """Grammars over a model's own tokenizer. Any thread may call this."""

    def __init__(self, folder: Path, vocabulary: int, ends: Sequence[int]) -> None:
        """`vocabulary` is the model's, `ends` its end tokens."""
        self.compiler = GrammarCompiler(folder, vocabulary, ends)
        self._guard = threading.Lock()
        self._known: OrderedDict[str, LlguidanceGrammar | InvalidGrammar] = OrderedDict()

    def known(self, text: str) -> LlguidanceGrammar | InvalidGrammar | None:
        """The remembered grammar, or what is wrong with it; None if it must be compiled."""
        with self._guard:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
        if isinstance(known, LlguidanceGrammar):
            if known.failure is not None:
                return InvalidGrammar(known.failure)
            return None if known.worn else known
        return known

    def compiled(self, text: str) -> LlguidanceGrammar:
        """The grammar that `Generate.grammar` says, compiled in this process if need be. Raises InvalidGrammar."""
        known = self.known(text)
        if known is None:
            try:
                known = self._compile(self.compiler.prepared(text), None, _USUAL_BYTES)
            except InvalidGrammar as error:
                known = error
            self.remember(text, known)
        if isinstance(known, InvalidGrammar):
            raise InvalidGrammar(str(known))
        return known

    def compile_proven(self, text: str, prepared: str, ending: list[int] | None, size: int) -> LlguidanceGrammar:
        """Compile what a trial has compiled before, and remember it. Raises InvalidGrammar.

        `prepared`, `ending` and `size`: what the trial found. Python's share of the work is small, so that a thread
        that does this holds up no other.
        """
        try:
            grammar = self._compile(prepared, (ending,), size)
        except InvalidGrammar as error:
            self.remember(text, error)
            raise
        self.remember(text, grammar)
        return grammar

    def remember(self, text: str, known: LlguidanceGrammar | InvalidGrammar) -> None:
        """Keep a grammar, or what is wrong with it; those not asked for longest make room."""
        with self._guard:
            for worn in [name for name, kept in self._known.items() if _is_worn(kept)]:
                del self._known[worn]
            self._known.pop(text, None)
            self._known[text] = known
            # Anew each time: what is remembered grows while it is used.
            total = sum(map(_size, self._known.values()))
            while len(self._known) > 1 and (len(self._known) > _REMEMBERED or total > _REMEMBERED_BYTES):
                _, oldest = self._known.popitem(last=False)
                total -= _size(oldest)

    def _compile(self, prepared: str, ending: tuple[list[int] | None] | None, size: int) -> LlguidanceGrammar:
        _, closer = self.compiler.vocabulary_of_model()
        matcher = self.compiler.matcher(prepared)
        end = run(closer.search(LlguidancePosition(matcher), MOST_TOKENS)) if ending is None else ending[0]
        words = -(-self.compiler.vocabulary // 32)
        return LlguidanceGrammar(matcher, SharedGrammarState(closer, self.compiler.ends, end, words), size)


def _is_worn(known: LlguidanceGrammar | InvalidGrammar) -> bool:
    return isinstance(known, LlguidanceGrammar) and known.worn


def _size(known: LlguidanceGrammar | InvalidGrammar) -> int:
    return known.size if isinstance(known, LlguidanceGrammar) else 0


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
