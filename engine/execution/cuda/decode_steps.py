"""One decode step for a number of rows: the model, its head and the tokens; on a GPU a captured graph.

Rows are padded to one of few counts (`row_counts`), each of which has its own graph. A graph reads its rows from fixed
memory, the latest tokens by slot, and writes the likeliest tokens back by slot; where rows are sampled, kernels behind
the graph replace them. So the step after it can be queued before anybody has read them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.execution.cuda.draws import Drawer, Draws, StepRows
from engine.execution.cuda.linears import padded_rows
from engine.execution.cuda.model import FusedDecoder, FusedLayer, Rows
from engine.execution.cuda.slots import Slots
from engine.kernels.decode_attention import DecodeAttention
from engine.kernels.decode_plan import DecodeBatch
from engine.kernels.latent_attention import LatentDecode
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
        self._captured: dict[int, Captured] = {}
        self._pool: object = None

    def padded(self, rows: int) -> int:
        """The count that so many rows are padded to."""
        return next(count for count in self.counts if count >= rows)

    def capture(self) -> None:
        """Capture the graphs of all counts, the largest first, which decides how much memory they share."""
        for count in reversed(self.counts):
            self._prepare(count)

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
    ) -> None:
        """Compute a step: its tokens are in `tokens` and its logits in `logits`, from the first row on.

        `positions` −1 for rows that are not to be computed; `order` has each row once. `sources`: where rows find their
        tokens, and leave those that follow; their slots if None. `draws`: how those are drawn, if not all of them are
        the likeliest ones; `counted`: which rows' own tokens are counted before that.
        """
        rows, count = len(slots), self.padded(len(slots))
        step = self._captured.get(count) or self._prepare(count)
        with self._uploads.filling(step.rows) as given:
            given[0, :rows], given[1, :rows], given[2, :rows] = slots, positions, order
            given[3, :rows] = slots if sources is None else sources
            given[4, :rows] = 0 if counted is None else counted
            given[0, rows:], given[1, rows:], given[3, rows:], given[4, rows:] = 0, -1, 0, 0
            given[2, rows:] = np.arange(rows, given.shape[1])
        if step.graph is None:
            self._compute(step.rows[:, :count])
        else:
            step.graph.replay()
        if draws is not None:
            _, positions_there, _, places, counting = step.rows
            there = StepRows(self._inputs, counting, positions_there, places, self.tokens, self.slots.latest)
            self.drawer(self.logits, draws, self.slots.seen.counts, there)

    def _prepare(self, count: int) -> Captured:
        device = self.model.device
        # Each of the five begins at an aligned address, for which kernels are compiled.
        whole = torch.zeros(5, count + -count % 4, dtype=torch.int32, device=device)
        whole[1] = -1
        whole[2] = torch.arange(whole.shape[1], device=device)
        step, rows = Captured(whole), whole[:, :count]
        self._captured[count] = step
        if device.type != "cuda":
            return step
        # Once beforehand: kernels are compiled, and libraries make what they need.
        self._compute(rows)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):  # type: ignore[arg-type]
            self._compute(rows)
        self._pool = graph.pool()
        step.graph = graph
        return step

    def _compute(self, rows: torch.Tensor) -> None:
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
        hidden = self.model(Rows(latest, positions, slots, tables), attend, streamed=streamed)
        logits = self.logits[:count]
        head = self.model.head
        head(hidden, out=logits, streamed=streamed and head.streamed_rows >= count)
        self.drawer.likeliest(logits, positions, sources, self.tokens[:count], self.slots.latest)
