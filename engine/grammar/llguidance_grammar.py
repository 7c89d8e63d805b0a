"""Compiles a model's grammars with llguidance, and caches them."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llguidance

from engine.grammar.closing_search import MOST_TOKENS, run
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.guide import InvalidGrammar
from engine.grammar.llguidance_guide import LlguidanceGuide, LlguidancePosition, SharedGrammarState
from model_files.model_documents import is_document, read_document

_REMEMBERED = 256
_REMEMBERED_BYTES = 512 * 1024 * 1024
_USUAL_BYTES = 1024 * 1024


_BYTES_PER_S = 32 * 1024 * 1024
"""An upper bound of the lexer states made in a second of CPU time; the worst case measured was 13 MiB."""
_FAILED_S = 60.0
"""Seconds for which a grammar that was too slow is refused. Then it is tried again: the machine may have been busy."""


class LlguidanceGrammar:
    """A compiled grammar: a matcher at its beginning, which is copied for each output."""

    def __init__(self, matcher: llguidance.LLMatcher, shared: SharedGrammarState, size: int) -> None:
        """`size`: estimated bytes of memory."""
        self._size = size
        self._matcher = matcher
        self._shared = shared

    @property
    def size(self) -> int:
        """Estimated bytes of memory, with the states that its outputs have added."""
        return self._size + int(self._shared.spent * _BYTES_PER_S)

    @property
    def exhausted(self) -> bool:
        """Whether it must be compiled again before its next use."""
        return self._shared.exhausted or (self._shared.failure is not None and self.failure is None)

    @property
    def failure(self) -> str | None:
        """Why it was given up in use within the last `_FAILED_S`; None if it was not."""
        recent = time.monotonic() - self._shared.failed_at < _FAILED_S
        return self._shared.failure if recent else None

    def guide(self) -> LlguidanceGuide:
        """A new guide at the beginning."""
        return LlguidanceGuide(self._matcher.deep_copy(), self._shared)


class LlguidanceGrammars:
    """Grammars over a model's own tokenizer. Thread-safe."""

    def __init__(self, folder: Path, vocabulary: int, ends: Sequence[int]) -> None:
        """`folder`: the model's. `vocabulary`: its number of tokens. `ends`: its end tokens."""
        self.compiler = GrammarCompiler(folder, vocabulary, ends)
        self._guard = threading.Lock()
        self._known: OrderedDict[str, LlguidanceGrammar | InvalidGrammar] = OrderedDict()

    def known(self, text: str) -> LlguidanceGrammar | InvalidGrammar | None:
        """The cached grammar, or what is wrong with it; None if it must be compiled."""
        with self._guard:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
        if isinstance(known, LlguidanceGrammar):
            if known.failure is not None:
                return InvalidGrammar(known.failure)
            return None if known.exhausted else known
        return known

    def compiled(self, text: str) -> LlguidanceGrammar:
        """The grammar of a `Generate.grammar` text, compiled in this process if necessary. Raises InvalidGrammar."""
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
        """Compile a grammar that has passed its trial, and cache it. Raises InvalidGrammar.

        `prepared`, `ending` and `size`: of the trial's verdict. Most of the work is done without the GIL, so a thread
        that compiles does not hold up others.
        """
        try:
            grammar = self._compile(prepared, (ending,), size)
        except InvalidGrammar as error:
            self.remember(text, error)
            raise
        self.remember(text, grammar)
        return grammar

    def remember(self, text: str, known: LlguidanceGrammar | InvalidGrammar) -> None:
        """Cache a grammar, or what is wrong with it; the least recently used are evicted."""
        with self._guard:
            for exhausted in [name for name, kept in self._known.items() if _is_exhausted(kept)]:
                del self._known[exhausted]
            self._known.pop(text, None)
            self._known[text] = known
            # Computed each time, as cached grammars grow in use.
            total = sum(map(_size, self._known.values()))
            while len(self._known) > 1 and (len(self._known) > _REMEMBERED or total > _REMEMBERED_BYTES):
                _, oldest = self._known.popitem(last=False)
                total -= _size(oldest)

    def _compile(self, prepared: str, ending: tuple[list[int] | None] | None, size: int) -> LlguidanceGrammar:
        tokenizer, closer = self.compiler.vocabulary_of_model()
        matcher = self.compiler.matcher(prepared)
        end = run(closer.search(LlguidancePosition(matcher), MOST_TOKENS)) if ending is None else ending[0]
        words = -(-self.compiler.vocabulary // 32)

        def tokenize(text: bytes) -> Sequence[int]:
            tokens: Sequence[int] = tokenizer.tokenize_partial(text)[0]
            return tokens

        return LlguidanceGrammar(matcher, SharedGrammarState(closer, self.compiler.ends, end, words, tokenize), size)


def _is_exhausted(known: LlguidanceGrammar | InvalidGrammar) -> bool:
    return isinstance(known, LlguidanceGrammar) and known.exhausted


def _size(known: LlguidanceGrammar | InvalidGrammar) -> int:
    return known.size if isinstance(known, LlguidanceGrammar) else 0


def end_tokens(folder: Path) -> tuple[int, ...]:
    """The model's end tokens, from its generation config, else from its config, and the tokenizer's own."""
    own = _tokenizer_end(folder)
    for name in ("generation_config.json", "config.json"):
        fields = _document(folder / name)
        inner = fields.get("text_config")
        value = (fields | inner if isinstance(inner, dict) else fields).get("eos_token_id")
        tokens = tuple(token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int))
        if tokens:
            return tuple(dict.fromkeys((*tokens, *own)))
    return own


def _tokenizer_end(folder: Path) -> tuple[int, ...]:
    config, definition = _document(folder / "tokenizer_config.json"), _document(folder / "tokenizer.json")
    end = config.get("eos_token")
    text = end.get("content") if isinstance(end, dict) else end
    return tuple(token["id"] for token in definition.get("added_tokens") or [] if token["content"] == text)


def _document(path: Path) -> dict[str, Any]:
    """The fields of a model's document; none if it is missing."""
    fields: dict[str, Any] = json.loads(read_document(path)) if is_document(path) else {}
    return fields
