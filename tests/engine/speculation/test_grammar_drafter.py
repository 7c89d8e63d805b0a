"""Guesses about grammars: bounded in time before a step, whatever the grammars, and everybody gets a turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from engine.grammar.closing_search import ClosingSearch
from engine.grammar.llguidance_guide import LlguidanceGuide, SharedGrammarState
from engine.sampling.guess_time import STEP_S, GuessTime
from engine.scheduling.decode_batch import DecodeBatch
from engine.scheduling.request import Request
from engine.scheduling.step_costs import FixedCosts
from engine.scheduling.step_work import Step
from engine.speculation.drafter import Drafter, Proposal, Query
from engine.speculation.grammar_drafter import GrammarDrafter
from engine.speculation.speculator import Speculation, Speculator
from tests.engine import modes
from tests.engine.speculation.test_ngram_drafter import request_of

GUESS_S = STEP_S / 10


class SlowGuide:
    """Each guess takes a tenth of what all have together."""

    def __init__(self) -> None:
        self.asked = 0

    def forced_tokens(self, most: int) -> Sequence[int]:
        self._work()
        return [1] * most

    def count_valid(self, tokens: Sequence[int]) -> int:
        self._work()
        return len(tokens)

    def _work(self) -> None:
        self.asked += 1
        until = time.thread_time() + GUESS_S
        while time.thread_time() < until:
            pass


class Fixed(Drafter):
    """Proposes the same tokens in each step."""

    name: ClassVar[str] = "fixed"

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        return [Proposal(self.tokens, 1.0) for _ in queries]


def guided(count: int) -> tuple[list[Request], list[SlowGuide]]:
    requests, guides = [], []
    for arrival in range(1, count + 1):
        request, guide = request_of([1, 2, 3], arrival), SlowGuide()
        row: Any = SimpleNamespace(guide=guide, draftable=True)
        request.row = row
        request.table = [(0,)]
        requests.append(request)
        guides.append(guide)
    return requests, guides


def test_forced_tokens_are_found_for_some_in_each_step_and_for_all_in_turns() -> None:
    requests, guides = guided(32)
    drafter = GrammarDrafter()
    for _ in range(20):
        before = sum(guide.asked for guide in guides)
        proposals = drafter.propose([Query(request, 3) for request in requests])
        asked = sum(guide.asked for guide in guides) - before
        assert 1 <= asked <= 6
        assert sum(proposal is not None for proposal in proposals) == asked
    assert all(guide.asked for guide in guides)


def test_drafts_are_checked_for_some_in_each_step_and_for_all_in_turns() -> None:
    requests, guides = guided(32)
    batch = DecodeBatch(32, 3, 99)
    for request in requests:
        batch.join(request)
    speculator = Speculator(Speculation([Fixed([5])]), batch, FixedCosts(), 999, 100)
    for _ in range(20):
        step = Step()
        step.work = batch.works()
        speculator.draft(step)
        assert 1 <= batch.drafted <= 6
        for decode in batch.decodes:
            decode.draft(())
        batch.drafted = 0
    assert all(guide.asked for guide in guides)


def test_drafts_end_where_the_grammar_forbids_them(tiny_model: Path, tokenizer: Path) -> None:
    """It begins with a brace: what cannot be right takes no row."""
    bench = modes.bench_of(tiny_model, tokenizer, drafters=[Fixed([5, 6])])
    bench.one(modes.request("x", 10, "grammar"))
    assert bench.counts("x").drafted == 0
    bench.one(modes.request("y", 10, "greedy"))
    assert bench.counts("y").drafted > 0


def test_whoever_had_no_time_is_first_in_the_next_step() -> None:
    turns = GuessTime(0.0)
    assert list(turns.turns([3, 1, 2])) == [1, 2, 3]
    assert [turns.guess(arrival, lambda: 1, 0) for arrival in (2, 3)] == [0, 0]
    assert list(turns.turns([3, 1, 2])) == [2, 3, 1]
    assert list(turns.turns([3, 1, 2])) == [1, 2, 3]


class ForcedText:
    """A matcher of the library in whose grammar one long text is left."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    def is_stopped(self) -> bool:
        return False

    is_error = is_stopped

    def deep_copy(self) -> ForcedText:
        return self

    def compute_ff_bytes(self) -> bytes:
        return self.text

    def compute_ff_tokens(self) -> Sequence[int]:
        return list(self.text)


def test_of_a_long_forced_text_only_the_beginning_is_cut_into_tokens() -> None:
    cut: list[int] = []

    def tokenize(text: bytes) -> Sequence[int]:
        cut.append(len(text))
        return list(text)

    closer: Any = ClosingSearch
    matcher: Any = ForcedText(b"abcdefgh" * 10_000)
    guide = LlguidanceGuide(matcher, SharedGrammarState(closer, [], None, 1, tokenize))
    assert list(guide.forced_tokens(7)) == list(b"abcdefg")
    assert max(cut) <= 256
