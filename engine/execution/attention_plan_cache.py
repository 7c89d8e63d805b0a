"""The attention plans of a step, one for each layer group; those of the last step are kept and reused where they hold.

Most steps decode the same requests in the same blocks as the step before. Then only the positions to write at and the
masks move on by one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from engine.attention_backends.backend import AttentionBackend
from engine.layers.attention_plan import AttentionPlan, Chunk, Indices, plan_attention
from engine.layers.fast_attention import plan_fast_attention
from engine.scheduling.step_work import Decode, Work
from prompt_cache.kv.grouped_pool import Block
from protocol.replicas import LayerGroup


class AttentionPlanCache:
    """Plans for a model with `heads` query heads and these layer groups, on this device.

    `backends`: what computes the attention of each group in place of our splits, None for those.
    """

    def __init__(self, heads: int, groups: Sequence[LayerGroup], device: torch.device) -> None:
        self._heads = heads
        self._groups = tuple(groups)
        self._device = device
        self.backends: Sequence[AttentionBackend | None] = [None] * len(self._groups)
        self._works: Sequence[Work] = ()
        self._revisions: list[int] = []
        self._plans: list[AttentionPlan] = []
        self._tables: dict[Decode, tuple[int, Indices]] = {}

    def of(self, works: Sequence[Work], decodes: int, tile: int, fused: bool) -> list[AttentionPlan]:
        """The plans of a step with these works, the first `decodes` of them of one token; see `plan_attention`."""
        revisions = [work.revision for work in works if isinstance(work, Decode)]
        # Plans of several rows of a request cannot move: where such a step failed, it may be run again as it was.
        same = decodes == len(revisions) == len(works) and works == self._works and revisions == self._revisions
        if same and all(plan.standing is not None for plan in self._plans):
            positions = np.array([work.start for work in works])
            for plan in self._plans:
                plan.move(positions)
            return self._plans
        self._tables = {work: self._table(work) for work in works if isinstance(work, Decode)}
        chunks = [
            (work.start, work.count, self._tables[work][1] if isinstance(work, Decode) else columns(work.request.table))
            for work in works
        ]
        self._plans = self.plan(chunks, decodes, tile, fused)
        self._works, self._revisions = works, revisions
        return self._plans

    def plan(
        self, chunks: Sequence[tuple[int, int, Indices]], decodes: int, tile: int, fused: bool
    ) -> list[AttentionPlan]:
        """The plans for chunks (start, count, table as `columns` gives it)."""
        return [
            self._plan(
                [Chunk(start, count, table[index]) for start, count, table in chunks], decodes, index, tile, fused
            )
            for index in range(len(self._groups))
        ]

    def _plan(self, chunks: Sequence[Chunk], decodes: int, index: int, tile: int, fused: bool) -> AttentionPlan:
        """The plan of the layer group of this index."""
        backend, group = self.backends[index], self._groups[index]
        plan = plan_attention(
            chunks,
            decodes,
            self._heads,
            group=group,
            device=self._device,
            tile=tile,
            fused=fused,
            tiled=backend is None,
        )
        if backend is None:
            return plan
        return replace(plan, fast=plan_fast_attention(plan, chunks, decodes, backend))

    def _table(self, work: Decode) -> tuple[int, Indices]:
        held = self._tables.get(work)
        if held is not None and held[0] == work.revision:
            return held
        return work.revision, columns(work.request.table)


def columns(table: Sequence[Block]) -> Indices:
    """[layer groups, blocks] of a block table."""
    return np.array(table, np.int64).T
