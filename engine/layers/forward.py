"""The inputs of one pass through the model that all layers share: positions, attention plans, KV memories."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.kv_cache.memory import KvMemory, KvSlot
from engine.layers.attention_plan import AttentionPlan
from engine.layers.rotary import Rotary


class Forward:
    """One pass: positions [rows], and an attention plan and a KV memory for each layer group."""

    def __init__(self, positions: torch.Tensor, plans: Sequence[AttentionPlan], memories: Sequence[KvMemory]) -> None:
        self.positions = positions
        self._plans = plans
        self._memories = memories
        self._rotary_tables: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def group(self, slot: KvSlot) -> tuple[AttentionPlan, KvMemory]:
        """The plan and memory of the slot's layer group."""
        return self._plans[slot.group], self._memories[slot.group]

    def apply_rotary_(self, rotary: Rotary, x: torch.Tensor) -> torch.Tensor:
        """Rotate [rows, heads, head dim] in place by the rows' positions. Tables are looked up once a pass."""
        tables = self._rotary_tables.get(id(rotary))
        if tables is None:
            tables = self._rotary_tables[id(rotary)] = rotary.at(self.positions)
        return rotary.apply_rotary_(x, tables)
