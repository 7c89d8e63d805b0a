"""Computes rows of a drafter's side sequences: known tokens, and drafts one after the other.

Few rows of a sequence are computed as so many decodes: their attention plan has the same shape in most steps, and moves
on (`AttentionPlan.move`). Many are a chunk, as of a prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from engine.execution.cpu_threads import Threads
from engine.kv_cache.memory import KvMemory
from engine.layers.attention_plan import AttentionPlan, Chunk, plan_attention
from engine.layers.linear import Tiling
from engine.speculation.side_kv import SideKv, SideSequence
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import ABSENT
from protocol.replicas import LayerGroup

MOST_SINGLE = 8
"""Rows of a sequence, at most, that are computed as decodes."""
_PLANS = 16


class DraftingModel(Protocol):
    """What computes the rows: a model of its own, or a head that goes on from the served model's hidden states."""

    groups: tuple[LayerGroup, ...]
    heads: int
    """Query heads."""
    vocabulary: int
    """It embeds tokens below this."""
    tiling: Tiling
    like: torch.Tensor

    def compute(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        features: torch.Tensor | None,
        plans: Sequence[AttentionPlan],
        memories: Sequence[KvMemory],
    ) -> torch.Tensor:
        """[rows] tokens at [rows] positions → [rows, hidden], from which `likeliest` draws. `features` [rows, hidden]:
        for a head, the hidden states before these tokens."""

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → [rows] the likeliest next tokens, as the served model numbers them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a sequence to compute: `count` from the position `start` on."""

    sequence: SideSequence
    start: int
    count: int


class SideRunner:
    """Computes pieces with a model, in the side group's memory."""

    def __init__(self, model: DraftingModel, side: SideKv) -> None:
        self.model = model
        self.side = side
        self.rows = 0
        """How many it has computed."""
        self.device = model.like.device
        self._fused = self.device.type == "cpu" and model.like.dtype == torch.float32
        self.threads = Threads.guessed(model.tiling.elements)
        self._plans: OrderedDict[tuple[tuple[int, int, int], ...], list[AttentionPlan]] = OrderedDict()

    def compute(
        self, pieces: Sequence[Piece], tokens: torch.Tensor, features: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states [rows, hidden] of the pieces' tokens, which lie one after the other in `tokens`.

        Those of more than `MOST_SINGLE` tokens come last.
        """
        positions = np.concatenate([np.arange(piece.start, piece.start + piece.count) for piece in pieces])
        plans = self._planned(pieces)
        if self.device.type == "cpu":
            self.threads.use(len(positions))
        self.rows += len(positions)
        there = torch.from_numpy(positions).to(self.device)
        return self.model.compute(tokens, there, features, plans, self.side.memories)

    def known_tokens(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """The pieces' tokens, which their requests have."""
        tokens: list[int] = []
        for piece in pieces:
            tokens += piece.sequence.request.tokens[piece.start : piece.start + piece.count]
        return torch.tensor(tokens, device=self.device)

    def _planned(self, pieces: Sequence[Piece]) -> Sequence[AttentionPlan]:
        places: list[int] = []
        shape: list[tuple[int, int, int]] = []
        for piece in pieces:
            sequence, start = piece.sequence, piece.start
            if piece.count > MOST_SINGLE:
                return self._plan(pieces)
            for place in range(start, start + piece.count):
                places.append(place)
                shape.append((sequence.serial, sequence.revision, place // BLOCK_TOKENS))
        plans = self._plans.get(key := tuple(shape))
        if plans is None:
            plans = self._plan(pieces)
            self._plans[key] = plans
            if len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
            return plans
        self._plans.move_to_end(key)
        at = np.array(places)
        for plan in plans:
            plan.move(at)
        return plans

    def _plan(self, pieces: Sequence[Piece]) -> list[AttentionPlan]:
        return [self._plan_group(pieces, index, group) for index, group in enumerate(self.side.groups)]

    def _plan_group(self, pieces: Sequence[Piece], index: int, group: LayerGroup) -> AttentionPlan:
        chunks: list[Chunk] = []
        decodes = 0
        for piece in pieces:
            sequence, start = piece.sequence, piece.start
            table = np.array([block[index] for block in sequence.table], np.int64)
            table[table == ABSENT] = table[-1]  # what lies there is not seen
            if piece.count > MOST_SINGLE:
                chunks.append(Chunk(start, piece.count, table, sequence.first))
            else:
                chunks += [Chunk(start + at, 1, table, sequence.first) for at in range(piece.count)]
                decodes = len(chunks)
        return plan_attention(chunks, decodes, self.model.heads, group=group, device=self.device, fused=self._fused)
