"""Runs steps by the fused kernels on a GPU, one decode step ahead of the host.

A step's decodes are one captured graph, its prompt chunks one more pass. Rows have the same bits in both, in any
company (E1). While nothing but decoding goes on and all tokens are the likeliest ones, the next step is queued before
this one's tokens are read: the device goes on while the host hands out what came. What was computed ahead for a request
that ended, or gave way, is left alone: it was written behind the request's last token, which nobody reads. Where the
next token has no block yet, it is written to a spare one, and copied when the scheduler has given the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from engine.execution.cuda.decode_steps import DecodeSteps
from engine.execution.cuda.model import FusedDecoder
from engine.execution.cuda.prefill import Chunk, Prefill
from engine.execution.cuda.slots import Slots
from engine.execution.model_runner import ModelRunner, NotFinite, WorkOutcome
from engine.execution.sizes import Sizes
from engine.kernels.attention_splits import split_bounds
from engine.kernels.likeliest import NOT_FINITE
from engine.kv_cache.memory import KvMemory
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.scheduling.request import Request
from engine.scheduling.step_work import Decode, Work
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block

Positions: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass
class Flight:
    """A decode step that was queued for `works` at positions `starts`. `tokens` are on the host once `event` has come.

    `row_of` says at which row each of `works` was computed, None for its own. `skipped` rows were not computed;
    `spare` has, by row, the spare block to which its token was written.
    """

    works: Sequence[Decode]
    starts: Positions
    tokens: torch.Tensor
    event: torch.cuda.Event | None
    skipped: Flags | None = None
    spare: dict[int, int] = field(default_factory=dict)
    row_of: list[int] | None = None


@dataclass(frozen=True)
class Prefilled:
    """A pass over prompts that was queued: hidden states and their sums by row, and logits of the works `sampling`."""

    works: Sequence[Work]
    hidden: torch.Tensor
    sums: torch.Tensor
    sampling: list[int]
    logits: torch.Tensor | None


def spare_blocks(running: int) -> int:
    """How many blocks to have beside the scheduler's."""
    return max(1, running // 8)


class CudaRunner(ModelRunner):
    """A runner of `model`, which `engine.execution.cuda.model.unsupported` has nothing against.

    `memories` have spare blocks behind those of `sizes`. Keys are cut at `bounds`, as `split_bounds` says if None.
    """

    def __init__(
        self,
        model: Decoder,
        memories: Sequence[KvMemory],
        device: torch.device,
        tiling: Tiling,
        swap: Sequence[KvMemory],
        *,
        sizes: Sizes,
        bounds: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model, memories, device, tiling, swap)
        self.sizes = sizes
        bounds = split_bounds(sizes.context) if bounds is None else bounds
        there = torch.tensor(bounds, dtype=torch.int32, device=device)
        self.fused = FusedDecoder(model, self.memories)
        self.slots = Slots(sizes.running, -(-sizes.context // BLOCK_TOKENS) + 1, len(memories), device)
        self.steps = DecodeSteps(self.fused, list(memories), self.slots, sizes.running, there)
        self.prefill = Prefill(self.fused, memories, bounds, there)
        spare = min(memory.data.shape[0] - count for memory, count in zip(memories, sizes.blocks, strict=True))
        self._spare = list(range(spare))
        self._ahead: Flight | None = None

    @property
    def numerics(self) -> str:
        return " fused fp8" if any(product.in_fp8 for product in self.fused.linears()) else " fused"

    def clear(self, blocks: Sequence[Block]) -> None:
        """Nothing to do: the kernels read no key that its request has not written."""

    def run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        try:
            return super().run(works)
        except Exception:
            self._drop_ahead()
            self.slots.token_at[:] = -1
            raise

    def _run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        decodes = [work for work in works if isinstance(work, Decode)]
        prefills = works[len(decodes) :]
        drawn = [at for at, work in enumerate(decodes) if not _takes_likeliest(work.request)]
        flight = self._decode(decodes) if decodes else None
        logits = None if flight is None else self._wanted_logits(flight, drawn)
        prefilled = self._prefill(prefills) if prefills else None
        if flight is not None and not prefills and not drawn:
            self._ahead = self._launch_ahead(flight)
        outcomes = [] if flight is None else self._read(flight)
        if logits is not None and self.on_logits is not None:
            self.on_logits(decodes, logits[:, : self.fused.vocabulary])
            logits = logits[drawn]
        if prefilled is not None:
            outcomes += self._finish_prefill(prefilled)
            drawn += [len(decodes) + at for at in prefilled.sampling]
            more = None if prefilled.logits is None else self._exact(prefilled.logits)
            if more is not None and self.on_logits is not None:
                self.on_logits([prefills[at] for at in prefilled.sampling], more[:, : self.fused.vocabulary])
            parts = [part for part in (logits, more) if part is not None]
            logits = torch.cat(parts) if parts else None
        if logits is not None and drawn:
            self._draw_rows(works, drawn, logits, outcomes)
        if flight is not None and drawn:
            self.slots.token_at[self.slots.rows[[row for row in drawn if row < len(decodes)]]] = -1
        return outcomes

    def _draw_rows(
        self, works: Sequence[Work], drawn: Sequence[int], logits: torch.Tensor, outcomes: list[WorkOutcome]
    ) -> None:
        """Draw for these works, which stand at `drawn`, all at once: what a step may do for grammars is bounded."""
        sound = [at for at, row in enumerate(drawn) if outcomes[row].error is None]
        if not sound:
            return
        chosen = [works[drawn[at]] for at in sound]
        found = self._drawn(chosen, logits if len(sound) == len(drawn) else logits[sound])
        for at, work, (token, logprob) in zip(sound, chosen, found, strict=True):
            outcome = self._outcome(work, token, logprob)
            outcome.scored = outcomes[drawn[at]].scored
            outcomes[drawn[at]] = outcome

    # ------------------------------------------------------------ decoding

    def _decode(self, works: Sequence[Decode]) -> Flight:
        """This step: what was computed ahead, or a new launch."""
        starts = np.array([work.start for work in works])
        ahead, self._ahead = self._ahead, None
        self.slots.bind(works)
        if ahead is not None:
            served = self._serve(ahead, works, starts)
            if served is not None:
                return served
        stale = np.nonzero(self.slots.token_at[self.slots.rows] != starts)[0].tolist()
        if stale:
            self.slots.tell(stale, [works[row].tokens[0] for row in stale])
        return self._launch(works, starts)

    def _launch(self, works: Sequence[Decode], starts: Positions, skipped: Flags | None = None) -> Flight:
        slots = self.slots
        positions = starts if skipped is None else np.where(skipped, -1, starts)
        self.steps.run(slots.rows, positions.astype(np.int32), slots.order)
        computed = slots.rows if skipped is None else slots.rows[~skipped]
        slots.token_at[computed] = (starts if skipped is None else starts[~skipped]) + 1
        if self.device.type != "cuda":
            return Flight(works, starts, self.steps.tokens[: len(works)].clone(), None, skipped)
        tokens = torch.empty(len(works), dtype=torch.int32, pin_memory=True)
        tokens.copy_(self.steps.tokens[: len(works)], non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return Flight(works, starts, tokens, event, skipped)

    def _launch_ahead(self, flight: Flight) -> Flight | None:
        """Queue the step after this one, but for rows that end with it; None if there is none, or no room for it."""
        slots, starts = self.slots, flight.starts + 1
        skipped = (starts > slots.last_start[slots.rows]) | (starts >= self.sizes.context)
        homeless = np.nonzero(~skipped & ~slots.has_room(starts))[0].tolist()
        if skipped.all() or len(homeless) > len(self._spare):
            return None
        spare = {row: self._spare.pop() for row in homeless}
        blocks = np.array([[count + block for count in self.sizes.blocks] for block in spare.values()], np.int32)
        slots.put(slots.rows[homeless], (starts[homeless] // BLOCK_TOKENS).astype(np.int32), blocks)
        ahead = self._launch(flight.works, starts, skipped)
        ahead.spare = spare
        return ahead

    def _serve(self, ahead: Flight, works: Sequence[Decode], starts: Positions) -> Flight | None:
        """What was computed ahead, if all of this step is in it. Spare blocks are copied to where they belong."""
        rows = range(len(works))
        if ahead.works != works:
            row_of = {work: row for row, work in enumerate(ahead.works)}
            found = [row_of.get(work) for work in works]
            rows = [row for row in found if row is not None]  # type: ignore[assignment]
        complete = len(rows) == len(works)
        if complete:
            at = list(rows)
            complete = bool((ahead.starts[at] == starts).all()) and not (
                ahead.skipped is not None and ahead.skipped[at].any()
            )
        if complete:
            self._bring_home(ahead, works, list(rows))
        self._spare += ahead.spare.values()
        if not complete:
            return None
        return Flight(works, starts, ahead.tokens, ahead.event, row_of=None if ahead.works == works else list(rows))

    def _bring_home(self, ahead: Flight, works: Sequence[Decode], rows: Sequence[int]) -> None:
        if not ahead.spare:
            return
        for work, row in zip(works, rows, strict=True):
            spare = ahead.spare.get(row)
            if spare is None:
                continue
            block = work.request.table[work.start // BLOCK_TOKENS]
            for memory, count, number in zip(self.memories, self.sizes.blocks, block, strict=True):
                # It has one token yet, the block's first.
                memory.data[number][..., 0, :].copy_(memory.data[count + spare][..., 0, :])

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._spare += self._ahead.spare.values()
            self._ahead = None

    def _wanted_logits(self, flight: Flight, drawn: Sequence[int]) -> torch.Tensor | None:
        """fp32 logits of the rows that the general sampler draws; of all rows where somebody wants to see them."""
        rows = list(range(len(flight.works))) if self.on_logits is not None else list(drawn)
        if not rows:
            return None
        if flight.row_of is not None:
            rows = [flight.row_of[row] for row in rows]
        return self._exact(self.steps.logits[rows])

    def _exact(self, logits: torch.Tensor) -> torch.Tensor:
        exact = logits.float()
        exact[:, self.fused.vocabulary :] = -torch.inf
        return exact

    def _read(self, flight: Flight) -> list[WorkOutcome]:
        """Wait for the step's likeliest tokens."""
        if flight.event is not None:
            flight.event.synchronize()
        tokens: list[int] = flight.tokens.tolist()
        if flight.row_of is not None:
            tokens = [tokens[row] for row in flight.row_of]
        return [WorkOutcome(token) if token != NOT_FINITE else WorkOutcome(error=_not_finite()) for token in tokens]

    # ------------------------------------------------------------ prompts

    def _prefill(self, works: Sequence[Work]) -> Prefilled:
        chunks = [
            Chunk(np.array(work.tokens, np.int32), work.start, np.array(work.request.table, np.int32).T)
            for work in works
        ]
        hidden = self.prefill(chunks)
        counts = [work.count for work in works]
        # What is not finite makes its row's sum so as well.
        sums = hidden[: sum(counts)].sum(-1, dtype=torch.float32)
        ends = np.cumsum(counts) - 1
        sampling = [at for at, work in enumerate(works) if work.samples]
        logits = None
        if sampling:
            rows = torch.from_numpy(ends[sampling])
            logits = self.fused.head(hidden.index_select(0, rows.to(self.device)))
        return Prefilled(works, hidden, sums, sampling, logits)

    def _finish_prefill(self, done: Prefilled) -> list[WorkOutcome]:
        """Wait for a pass over prompts; what it samples is drawn later."""
        works = done.works
        finite = np.isfinite(done.sums.cpu().numpy())
        firsts = np.concatenate([[0], np.cumsum([work.count for work in works])[:-1]])
        sound = np.logical_and.reduceat(finite, firsts).tolist()
        return [
            WorkOutcome(scored=self._score(work, done.hidden, first)) if good else WorkOutcome(error=_not_finite())
            for work, first, good in zip(works, firsts.tolist(), sound, strict=True)
        ]

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._exact(self.fused.head(hidden))


def _not_finite() -> NotFinite:
    return NotFinite("the model computed NaN or infinity")


def _takes_likeliest(request: Request) -> bool:
    """Whether the likeliest token is drawn, and nothing else told of it."""
    sampling, row = request.sampling, request.row
    return sampling.temperature == 0 and sampling.logprobs is None and (row is None or not row.shaped)
