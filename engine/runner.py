"""Runs one step's work on the device: tokens in, one sampled token per finished row out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.kv_memory import KvMemory
from engine.layers.attention_plan import PREFILL_TILE, AttentionPlan, Chunk, plan_attention
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.sampling.sampler import sample
from engine.scheduling.work import Work
from engine.threads import Threads
from prompt_cache.block_groups import Block


class NotFinite(Exception):
    """The model computed NaN or infinity for this request."""


@dataclass(frozen=True)
class Outcome:
    """What became of one work: the sampled token if it samples, or why it failed."""

    token: int | None = None
    error: Exception | None = None


class Runner:
    """A model and the memories of its layer groups; `tiling` is the model\'s.

    `on_logits` sees works that sample and their logits.
    """

    def __init__(self, model: Decoder, memories: Sequence[KvMemory], device: torch.device, tiling: Tiling) -> None:
        self.model = model
        self.memories = tuple(memories)
        self.device = device
        self.tiling = tiling
        self.threads = Threads(torch.get_num_threads(), torch.get_num_threads())
        self.prefill_tile = PREFILL_TILE
        self.on_logits: Callable[[Sequence[Work], torch.Tensor], None] | None = None

    def clear(self, blocks: Sequence[Block]) -> None:
        """Clear newly allocated blocks before their first use."""
        with torch.inference_mode():
            for group, memory in enumerate(self.memories):
                memory.zero([block[group] for block in blocks])

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
        for work, good in zip(works, sound, strict=True):
            token = next(sampled) if work.samples else None
            outcomes.append(Outcome(token) if good else Outcome(error=NotFinite("the model computed NaN or infinity")))
        return outcomes

    def _sound(self, works: Sequence[Work], finite: list[bool]) -> list[bool]:
        sound, at = [], 0
        for work in works:
            sound.append(all(finite[at : at + work.count]))
            at += work.count
        return sound

    def _sample(self, works: Sequence[Work], hidden: torch.Tensor, rows: list[int]) -> list[int]:
        taken = rows + [rows[0]] * self.tiling.padding(len(rows))
        logits = self.model.head(hidden[taken])
        if self.on_logits is not None:
            self.on_logits(works, logits[: len(rows), : self.model.config.vocabulary])
        return sample(logits, [work.request.row for work in works if work.request.row is not None])
