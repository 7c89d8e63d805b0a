"""Runs one step's work on the device: tokens in, one sampled token per finished row out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.kv_memory import KvMemory
from engine.layers.attention_plan import PREFILL_TILE, AttentionPlan, Chunk, plan_attention
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.protocol import TokenLogprob
from engine.sampling.logprobs import logprobs_of
from engine.sampling.sampler import sample
from engine.scheduling.work import Work
from engine.threads import Threads
from prompt_cache.block_groups import ABSENT, Block

_SCORED_ROWS = 64
"""Of a prompt whose log probabilities are wanted, so many rows of logits are in memory at a time."""


class NotFinite(Exception):
    """The model computed NaN or infinity for this request."""


@dataclass(frozen=True)
class Outcome:
    """What became of one work: the sampled token if it samples, or why it failed.

    `scored` are the log probabilities of prompt tokens from the work's second one on.
    """

    token: int | None = None
    error: Exception | None = None
    logprob: TokenLogprob | None = None
    scored: tuple[TokenLogprob, ...] = ()


class Runner:
    """A model, whose tiling is `tiling`, and the memories of its layer groups: on the device, and for `swap`.

    `on_logits` sees works that sample and their logits.
    """

    def __init__(
        self,
        model: Decoder,
        memories: Sequence[KvMemory],
        device: torch.device,
        tiling: Tiling,
        swap: Sequence[KvMemory] = (),
    ) -> None:
        self.model = model
        self.memories = tuple(memories)
        self.swap = tuple(swap)
        self.device = device
        self.tiling = tiling
        self.threads = Threads(torch.get_num_threads(), torch.get_num_threads())
        self.prefill_tile = PREFILL_TILE
        self.on_logits: Callable[[Sequence[Work], torch.Tensor], None] | None = None

    def clear(self, blocks: Sequence[Block]) -> None:
        """Clear newly allocated blocks before their first use."""
        with torch.inference_mode():
            for group, memory in enumerate(self.memories):
                memory.zero([block[group] for block in blocks if block[group] != ABSENT])

    def copy_out(self, pairs: Sequence[tuple[Block, Block]]) -> None:
        """Copy blocks (of the device's memory, of the swap memory)."""
        self._copy(self.memories, self.swap, pairs)

    def copy_back(self, pairs: Sequence[tuple[Block, Block]]) -> None:
        """Copy blocks (of the swap memory, of the device's memory)."""
        self._copy(self.swap, self.memories, pairs)

    def time_copy(self) -> float:
        """µs that copying a block takes, after one that pays for warming up. Uses the first block, which it clears."""
        block = (0,) * len(self.memories)
        self.clear([block])
        for _ in range(2):
            began = time.perf_counter()
            self.copy_out([(block, block)])
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            took = time.perf_counter() - began
        return took * 1e6

    def _copy(
        self, sources: Sequence[KvMemory], targets: Sequence[KvMemory], pairs: Sequence[tuple[Block, Block]]
    ) -> None:
        with torch.inference_mode():
            for group, (source, target) in enumerate(zip(sources, targets, strict=True)):
                numbers = [(there[group], here[group]) for there, here in pairs]
                target.copy(source, [pair for pair in numbers if ABSENT not in pair])

    def plans(self, chunks: Sequence[tuple[int, int, Sequence[Block]]], decodes: int) -> list[AttentionPlan]:
        """One attention plan for each layer group, for chunks (start, count, table); see `plan_attention`."""
        return [
            plan_attention(
                [Chunk(start, count, [block[group] for block in table]) for start, count, table in chunks],
                decodes,
                self.model.config.heads,
                group=memory.group,
                device=self.device,
                tile=self.prefill_tile,
            )
            for group, memory in enumerate(self.memories)
        ]

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """Compute these works, those of one token first; raises what the model raises.

        Writing the same KV twice is harmless, so that a step may be run again without one of its requests.
        """
        with torch.inference_mode():
            return self._run(works)

    def _run(self, works: Sequence[Work]) -> list[Outcome]:
        tokens: list[int] = []
        positions: list[int] = []
        last = []
        for work in works:
            tokens += work.request.tokens[work.start : work.start + work.count]
            positions += range(work.start, work.start + work.count)
            last.append(len(tokens) - 1)
        padding = self.tiling.padding(len(tokens))
        if self.device.type == "cpu":
            self.threads.use(len(tokens))
        plans = self.plans(
            [(work.start, work.count, work.request.table) for work in works], sum(work.count == 1 for work in works)
        )
        hidden = self.model(
            torch.tensor(tokens + [0] * padding, device=self.device),
            torch.tensor(positions + [0] * padding, device=self.device),
            plans,
            self.memories,
        )
        finite = hidden.isfinite().all(-1)
        sound = [True] * len(works) if bool(finite.all()) else self._sound(works, finite.tolist())
        rows = [row for row, work in zip(last, works, strict=True) if work.samples]
        sampled = iter(self._sample([work for work in works if work.samples], hidden, rows) if rows else [])
        outcomes = []
        for work, good, end in zip(works, sound, last, strict=True):
            token, logprob = next(sampled) if work.samples else (None, None)
            if not good:
                outcomes.append(Outcome(error=NotFinite("the model computed NaN or infinity")))
                continue
            outcomes.append(Outcome(token, logprob=logprob, scored=self._score(work, hidden, end - work.count + 1)))
        return outcomes

    def _score(self, work: Work, hidden: torch.Tensor, first: int) -> tuple[TokenLogprob, ...]:
        """Log probabilities of the prompt tokens after those of this work, a tile of rows at a time."""
        request = work.request
        wanted = request.sampling.prompt_logprobs
        end = min(work.start + work.count, request.prompt - 1)
        start = max(work.start, request.scored)
        if wanted is None or request.choice or start >= end:
            return ()
        scored: list[TokenLogprob] = []
        for at in range(start, end, _SCORED_ROWS):
            until = min(at + _SCORED_ROWS, end)
            rows = [first + position - work.start for position in range(at, until)]
            logits = self.model.head(hidden[rows + [rows[0]] * self.tiling.padding(len(rows))])[: len(rows)]
            scored += logprobs_of(logits, request.tokens[at + 1 : until + 1], [wanted] * len(rows))
        request.scored = end
        return tuple(scored)

    def _sound(self, works: Sequence[Work], finite: list[bool]) -> list[bool]:
        sound, at = [], 0
        for work in works:
            sound.append(all(finite[at : at + work.count]))
            at += work.count
        return sound

    def _sample(
        self, works: Sequence[Work], hidden: torch.Tensor, rows: list[int]
    ) -> list[tuple[int, TokenLogprob | None]]:
        taken = rows + [rows[0]] * self.tiling.padding(len(rows))
        logits = self.model.head(hidden[taken])
        if self.on_logits is not None:
            self.on_logits(works, logits[: len(rows), : self.model.config.vocabulary])
        tokens = sample(logits, [work.request.row for work in works if work.request.row is not None])
        logprobs: list[TokenLogprob | None] = [None] * len(tokens)
        told = {at: n for at, work in enumerate(works) if (n := work.request.sampling.logprobs) is not None}
        if told:
            found = logprobs_of(logits[list(told)], [tokens[at] for at in told], list(told.values()))
            for at, logprob in zip(told, found, strict=True):
                logprobs[at] = logprob
        return list(zip(tokens, logprobs, strict=True))
