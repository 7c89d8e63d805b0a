"""One decode step for a number of rows: the model, its head and the tokens; on a GPU a captured graph.

Rows are padded to one of few counts (`row_counts`), each of which has its own graph. A graph reads its rows from fixed
memory, the latest tokens by slot, and writes the likeliest tokens back by slot; where rows are sampled, kernels behind
the graph replace them. So the step after it can be queued before anybody has read them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.execution.cuda.adapters import AdaptedRows, AdapterMemory
from engine.execution.cuda.draws import Drawer, Draws, StepRows
from engine.execution.cuda.linears import padded_rows
from engine.execution.cuda.model import FusedDecoder, FusedLayer, Rows
from engine.execution.cuda.slots import Slots
from engine.kernels.decode_attention import DecodeAttention
from engine.kernels.decode_plan import DecodeBatch
from engine.kernels.latent_attention import LatentDecode
from engine.kernels.low_rank import row_tiles
from engine.kernels.paged_kv import LatentKv
from engine.kernels.uploads import Ints
from engine.kv_cache.memory import KvMemory

_SMALL_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384)
_STEP = 128


def row_counts(most: int) -> list[int]:
    """The counts of rows that decode steps of up to `most` requests are padded to."""
    large = range(_SMALL_COUNTS[-1] + _STEP, most + _STEP, _STEP)
    return [count for count in (*_SMALL_COUNTS, *large) if count < most] + [most]


@dataclass
class Captured:
    """The step of one count of rows.

    `rows` int32 [5, at least count]: slots, positions, order, places of tokens, whether the tokens are counted.
    """

    rows: torch.Tensor
    adapted: AdaptedRows | None = None
    """The rows that have adapters, where some may."""
    planned: bytes = b""
    """The slots of adapters by row for which its tiles are."""
    graph: torch.cuda.CUDAGraph | None = None


class DecodeSteps:
    """Decode steps of up to `most` rows; keys are cut at `bounds`."""

    def __init__(
        self,
        model: FusedDecoder,
        memories: list[KvMemory],
        slots: Slots,
        most: int,
        bounds: torch.Tensor,
    ) -> None:
        device, most = model.device, padded_rows(most)
        self.model = model
        self._uploads = slots.upload
        self.slots = slots
        self.counts = row_counts(most)
        self.windows = [memory.group.window for memory in memories]
        first = {layer.group: layer for layer in reversed(model.layers)}
        self._attentions: list[DecodeAttention | LatentDecode] = [
            LatentDecode(most, model.heads, kv, bounds)
            if isinstance(kv := first[group].kv, LatentKv)
            else DecodeAttention(most, model.heads, kv, bounds, scores=first[group].scores)
            for group in range(len(memories))
        ]
        self.drawer = Drawer(most, model.vocabulary, device)
        self._inputs = torch.zeros(most, dtype=torch.int32, device=device)
        """The tokens that a step computed: it may have written the next ones to where it found them."""
        self.tokens = torch.zeros(most, dtype=torch.int32, device=device)
        self.logits = torch.empty(most, model.head.outputs, dtype=model.embedding.dtype, device=device)
        self.adapters: AdapterMemory | None = None
        """Where adapters are, if steps compute any. Then each count of rows has a second graph, for steps with some: in
        the first, nothing is done for them."""
        self._sums: torch.Tensor | None = None
        self._captured: dict[tuple[int, bool], Captured] = {}
        self._pool: object = None

    def padded(self, rows: int) -> int:
        """The count that so many rows are padded to."""
        return next(count for count in self.counts if count >= rows)

    def capture(self) -> None:
        """Capture the graphs of all counts, the largest first, which decides how much memory they share."""
        for count in reversed(self.counts):
            for adapted in (False, True)[: 1 if self.adapters is None else 2]:
                self._prepare(count, adapted)

    def forget(self) -> None:
        """Let go of all graphs: something that they were captured with has changed."""
        self._captured.clear()
        # What they shared ends with the last of them.
        self._pool = None

    def run(
        self,
        slots: Ints,
        positions: Ints,
        order: Ints,
        sources: Ints | None = None,
        *,
        draws: Draws | None = None,
        counted: Ints | None = None,
        adapted: Ints | None = None,
    ) -> None:
        """Compute a step: its tokens are in `tokens` and its logits in `logits`, from the first row on.

        `positions` −1 for rows that are not to be computed; `order` has each row once. `sources`: where rows find their
        tokens, and leave those that follow; their slots if None. `draws`: how those are drawn, if not all of them are
        the likeliest ones; `counted`: which rows' own tokens are counted before that. `adapted`: the slots of the rows'
        adapters, −1 for rows of the base model; None if all are that.
        """
        rows, count = len(slots), self.padded(len(slots))
        step = self._captured.get((count, adapted is not None)) or self._prepare(count, adapted is not None)
        with self._uploads.filling(step.rows) as given:
            given[0, :rows], given[1, :rows], given[2, :rows] = slots, positions, order
            given[3, :rows] = slots if sources is None else sources
            given[4, :rows] = 0 if counted is None else counted
            given[0, rows:], given[1, rows:], given[3, rows:], given[4, rows:] = 0, -1, 0, 0
            given[2, rows:] = np.arange(rows, given.shape[1])
        if step.adapted is not None and adapted is not None and step.planned != adapted.tobytes():
            with self._uploads.filling(step.adapted.tiles) as tiles:
                tiles[:] = row_tiles(adapted, len(tiles))
            step.planned = adapted.tobytes()
        if step.graph is None:
            self._compute(step.rows[:, :count], step.adapted)
        else:
            step.graph.replay()
        if draws is not None:
            _, positions_there, _, places, counting = step.rows
            there = StepRows(self._inputs, counting, positions_there, places, self.tokens, self.slots.latest)
            self.drawer(self.logits, draws, self.slots.seen.counts, there)

    def _adapted(self, count: int) -> AdaptedRows:
        """No rows with adapters yet, of `count` rows of which each may have one."""
        memory = self.adapters
        if memory is None:
            raise RuntimeError("no adapters are computed here")
        if self._sums is None:  # the steps share it
            self._sums = memory.sums_for(self.counts[-1])
        tiles = torch.full((count, 2), -1, dtype=torch.int32, device=self.model.device)
        return AdaptedRows(memory, tiles, self._sums)

    def _prepare(self, count: int, adapted: bool) -> Captured:
        device = self.model.device
        # Each of the five begins at an aligned address, for which kernels are compiled.
        whole = torch.zeros(5, count + -count % 4, dtype=torch.int32, device=device)
        whole[1] = -1
        whole[2] = torch.arange(whole.shape[1], device=device)
        step, rows = Captured(whole, self._adapted(count) if adapted else None), whole[:, :count]
        self._captured[count, adapted] = step
        if device.type != "cuda":
            return step
        # Once beforehand: kernels are compiled, and libraries make what they need.
        self._compute(rows, step.adapted)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):  # type: ignore[arg-type]
            self._compute(rows, step.adapted)
        self._pool = graph.pool()
        step.graph = graph
        return step

    def _compute(self, rows: torch.Tensor, adapted: AdaptedRows | None) -> None:
        count = rows.shape[1]
        streamed = self.model.streams(count)
        slots, positions, order, sources, _ = rows
        tables = self.slots.block_tables
        batches = [DecodeBatch(positions, slots, order, table) for table in tables]
        for attention, batch, window in zip(self._attentions, batches, self.windows, strict=True):
            attention.plan(batch, window=window)

        def attend(layer: FusedLayer, query: torch.Tensor, mixed: torch.Tensor) -> None:
            self._attentions[layer.group](query, layer.kv, batches[layer.group], layer.scores, mixed, ahead=streamed)

        latest = torch.index_select(self.slots.latest, 0, sources, out=self._inputs[:count])
        hidden = self.model(Rows(latest, positions, slots, tables, adapted), attend, streamed=streamed)
        logits = self.logits[:count]
        head = self.model.head
        head(hidden, out=logits, streamed=streamed and head.streamed_rows >= count)
        self.drawer.likeliest(logits, positions, sources, self.tokens[:count], self.slots.latest)
