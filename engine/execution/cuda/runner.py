"""Runs steps by the fused kernels on a GPU, one decode step ahead of the host.

A step's decodes are one captured graph, its prompt chunks one more pass: a graph as well if they are short, as behind a
cached prefix, since to launch a pass kernel by kernel takes the host longer than the device computes it. Rows have the
same bits in all of them, in any company (E1). The next step is queued before this one's tokens are read: the device
goes on while the host hands out what came. Where a grammar has a say, the forward pass is queued ahead like any other,
and its draw as soon as the host, which knows the token before by then, has found out what is allowed. What was
computed ahead for a request that ended, gave way, or whose grammar replaced the token, is left alone: it was written
behind the request's last token, which nobody reads. Where the next token has no block yet, it is written to a spare
one, and copied when the scheduler has given the block. A step that verifies drafts is not queued ahead
(`verify_steps`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.execution.cuda.adapters import AdapterMemory, slots_of
from engine.execution.cuda.decode_steps import DecodeSteps
from engine.execution.cuda.deferred_draws import DeferredDraws, Drawn
from engine.execution.cuda.draws import Draws, changed_rows, is_guided
from engine.execution.cuda.flights import (
    Flags,
    Flight,
    Positions,
    Prefilled,
    Undrawn,
    exact,
    not_finite,
    rows_ahead,
    still_undrawn,
    tell,
)
from engine.execution.cuda.latents import bounds_of
from engine.execution.cuda.linears import padded_rows
from engine.execution.cuda.model import FusedDecoder
from engine.execution.cuda.prefill import Prefill
from engine.execution.cuda.slots import MOST_CHUNKS, NOWHERE, Chunk, Slots
from engine.execution.cuda.step_grammars import StepGrammars
from engine.execution.cuda.verify_steps import VerifySteps, most_rows
from engine.execution.model_runner import ModelRunner, Sizes
from engine.kernels.host_words import to_host
from engine.kernels.likeliest import NOT_FINITE
from engine.kernels.uploads import Ints, Uploads
from engine.kv_cache.memory import KvMemory
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.scheduling.step_work import Decode, Work, WorkOutcome
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block

_SHORT = 256
"""Prompt tokens of a step, at most, that a graph computes."""


class CudaRunner(ModelRunner):
    """A runner of `model`, which `engine.execution.cuda.model.unsupported` has nothing against.

    `memories` have spare blocks behind those of `sizes`. Keys are cut at `bounds`, as `bounds_of` says if None.
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
        self.most_drafts, self.sizes = sizes.drafts, sizes
        self.bounds = bounds = bounds_of(model, sizes.context) if bounds is None else bounds
        there = torch.tensor(bounds, dtype=torch.int32, device=device)
        self.fused = FusedDecoder(model, self.memories)
        blocks = -(-sizes.context // BLOCK_TOKENS) + 1
        self.short = min(_SHORT, sizes.running)
        self.upload = Uploads(device)
        size, rows = self.fused.vocabulary, most_rows(sizes)
        # Steps are tried at every count of rows that they are padded to, each row with a slot of its own.
        slots = padded_rows(rows)
        self.slots = Slots(
            slots, blocks, len(memories), size, self.upload, tokens=max(self.short, rows), drafts=sizes.drafts
        )
        self.steps = DecodeSteps(self.fused, list(memories), self.slots, rows, there)
        self.pipeline.queues, self.pipeline.most_rows = True, rows
        self._grammars = StepGrammars(self._grammar, size, self.upload)
        self._deferred = DeferredDraws(self.steps.drawer, self.slots, size, self.upload)
        self._verify_steps = VerifySteps(self.steps, self._deferred, self._grammars, self._grammar)
        self.prefill = Prefill(self.fused, memories, bounds, there, self.upload)
        self._spare = list(
            range(min(len(memory.data) - count for memory, count in zip(memories, sizes.blocks, strict=True)))
        )
        self._ahead: Flight | None = None
        self.adapter_memory: AdapterMemory | None = None

    def compute_adapters(self, memory: AdapterMemory | None) -> None:
        """Compute the adapters in this memory from now on, before graphs are captured; none if None."""
        self.adapter_memory = self.steps.adapters = self.prefill.adapters = memory
        self.prepare_adapter = None if memory is None else memory.prepare

    clears, gives_states, has_kernels = False, False, True

    @property
    def numerics(self) -> str:
        kinds = sorted({product.numerics for product in self.fused.linears()} - {""})
        return " ".join([" fused", *kinds])

    def idles_between_steps(self) -> bool:
        """Not while the step that was queued ahead is computed."""
        ahead = self._ahead
        if ahead is None or ahead.event is None:
            return super().idles_between_steps()
        return bool(ahead.event.query())  # type: ignore[no-untyped-call]

    def clear(self, blocks: Sequence[Block]) -> None:
        """Nothing to do: the kernels read no key that its request has not written."""

    def run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        self._grammars.begin()
        try:
            return super().run(works)
        except Exception:
            self._drop_ahead()
            self.slots.forget()
            raise

    def grammar_wait_s(self, outcomes: Sequence[WorkOutcome]) -> float:
        return min(super().grammar_wait_s(outcomes), self._grammars.waited_s())

    def _run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        decodes = [work for work in works if isinstance(work, Decode)]
        prefills = works[len(decodes) :]
        if any(work.drafts for work in decodes):
            return self._verify(decodes) + (self._run(prefills) if prefills else [])
        flight = self._decode(decodes) if decodes else None
        logits = None if flight is None or self.on_logits is None else self._shown(flight)
        prefilled = self._prefill(prefills) if prefills else None
        drawn = self._draw_deferred(works, flight, prefilled)
        if flight is not None and not self.pipeline.held:
            self._ahead = self._launch_ahead(flight)
            self.pipeline.queued = self._ahead is not None
        if (last := prefilled or flight) is not None and last.event is not None:
            self.meanwhile(last.event.query)
        outcomes = [] if flight is None else flight.outcomes()
        if self.on_logits is not None and logits is not None:
            self.on_logits(decodes, logits[:, : self.fused.vocabulary])
        if prefilled is not None:
            outcomes += self._finish_prefill(prefilled)
            if self.on_logits is not None and prefilled.logits is not None:
                shown = self._exact(prefilled.logits)[:, : self.fused.vocabulary]
                self.on_logits([prefills[at] for at in prefilled.sampling], shown)
        for part in drawn:
            part.enter(outcomes)
        for at in self._grammars.choose(works, outcomes, drawn):
            if at < len(decodes):
                self._forget_token(at)
        for work, outcome in zip(works, outcomes, strict=True):
            self._count_grammar(work, outcome)
        return outcomes

    def _draw_deferred(self, works: Sequence[Work], flight: Flight | None, prefilled: Prefilled | None) -> list[Drawn]:
        """Queue the draws for which the host has to know all tokens before: under grammars, and behind prompts."""
        undrawn = None if flight is None else flight.undrawn
        rows = [] if undrawn is None else undrawn.rows
        behind = 0 if flight is None else len(flight.works)
        firsts = [] if prefilled is None else [behind + at for at in prefilled.sampling]
        masks = self._grammars.masks([works[at] for at in [*rows, *firsts]])
        drawn = []
        if undrawn is not None:
            drawn.append(self._deferred.of_decodes(works, rows, undrawn.logits, masks[: len(rows)]))
        if prefilled is not None and prefilled.logits is not None:
            drawn.append(self._deferred.of_prompts(works, firsts, prefilled.logits, masks[len(rows) :]))
        return drawn

    def _forget_token(self, row: int) -> None:
        """The device has another token of this row than the one that is put out."""
        self.slots.token_at[self.slots.rows[row]] = NOWHERE
        if self._ahead is not None and self._ahead.skipped is not None:
            self._ahead.skipped[row] = True

    def _verify(self, works: Sequence[Decode]) -> list[WorkOutcome]:
        """A step that verifies drafts: what was queued ahead does not know them."""
        self._drop_ahead()
        self.slots.bind(works)
        outcomes = self._verify_steps.run(works, self.meanwhile, self.on_logits)
        for work, outcome in zip(works, outcomes, strict=True):
            self._count_grammar(work, outcome)
        return outcomes

    # ------------------------------------------------------------ decoding

    def _decode(self, works: Sequence[Decode]) -> Flight:
        """This step: what was computed ahead, as far as it was, and a new launch for the rest."""
        starts = np.array([work.start for work in works])
        ahead = self._ahead
        # Its spare blocks are free once they are read below: only the next launch ahead takes some.
        self._drop_ahead()
        self.slots.bind(works)
        if ahead is None:
            return self._launch_now(works, starts)
        row_of = rows_ahead(ahead, works, starts)
        if row_of is None:
            return self._launch_now(works, starts)
        self._bring_home(ahead, works, row_of)
        missing = [at for at, row in enumerate(row_of) if row < 0]
        if not missing:
            undrawn = still_undrawn(ahead, row_of, self.upload)
            return Flight(works, starts, ahead.tokens, ahead.event, row_of=row_of, told=ahead.told, undrawn=undrawn)
        kept = [at for at, row in enumerate(row_of) if row >= 0]
        shown = self._exact(self.steps.logits[[row_of[at] for at in kept]]) if self.on_logits is not None else None
        more = self._launch_now([works[at] for at in missing], starts[missing], np.array(missing))
        if shown is not None:
            logits = torch.cat([shown, self._exact(self.steps.logits[: len(missing)])])
            shown = logits[np.argsort([*kept, *missing])]
        undrawn = still_undrawn(ahead, row_of, self.upload, more, missing)
        for place, at in enumerate(missing):
            row_of[at] = len(ahead.tokens) + place
        return Flight(
            works, starts, ahead.tokens, ahead.event,
            row_of=row_of, more=more, shown=shown, told=ahead.told, undrawn=undrawn,
        )  # fmt: skip

    def _launch_now(self, works: Sequence[Decode], starts: Positions, rows: Positions | None = None) -> Flight:
        """Launch `works`, which are these rows of the bound ones, all of them if None."""
        slots = self.slots.rows if rows is None else self.slots.rows[rows]
        stale = np.nonzero(self.slots.token_at[slots] != starts)[0].tolist()
        if stale:
            self.slots.tell(slots[stale], [works[row].tokens[0] for row in stale])
        return self._launch(works, starts, self._draws(works, slots), rows=rows)

    def _launch(
        self,
        works: Sequence[Decode],
        starts: Positions,
        draws: Draws | None,
        skipped: Flags | None = None,
        rows: Positions | None = None,
    ) -> Flight:
        slots, order = self.slots.rows, self.slots.order
        if rows is not None:
            # In the order that all rows have.
            slots, order = slots[rows], np.argsort(np.argsort(order)[rows]).astype(np.int32)
        positions = starts if skipped is None else np.where(skipped, -1, starts)
        counted = None if draws is None else self._counted(draws, works, starts, skipped)
        adapted = slots_of(works)
        self.steps.run(slots, positions.astype(np.int32), order, draws=draws, counted=counted, adapted=adapted)
        computed = np.ones(len(works), np.bool_) if skipped is None else ~skipped
        self.slots.token_at[slots[computed]] = starts[computed] + 1
        tokens, event = to_host(self.steps.tokens[: len(works)])
        drawn = computed & ~self.slots.guided[slots]
        told = tell(
            works, self.steps.logits, self.steps.tokens, self.upload, vocabulary=self.fused.vocabulary, skipped=~drawn
        )
        undrawn = None
        later = np.nonzero(computed & ~drawn)[0].astype(np.int32)
        if len(later):
            (there,) = self.upload([later])
            undrawn = Undrawn(later.tolist(), self.steps.logits.index_select(0, there))
        return Flight(works, starts, tokens, event, skipped, told=told, undrawn=undrawn)

    def _draws(self, works: Sequence[Decode], slots: Ints) -> Draws | None:
        """How the rows are drawn with the step, which those of which the host has a say are not."""
        changed = [row for row in changed_rows([work.request for work in works]) if not is_guided(works[row].request)]
        return self.slots.draws_of(slots, changed)

    def _counted(self, draws: Draws, works: Sequence[Decode], starts: Positions, skipped: Flags | None) -> Ints:
        """Which of the rows count their own token on the device; the others' are counted there."""
        rows, places = draws.penalized(skipped)
        states = [row for at in rows.tolist() if (row := works[at].request.row) is not None]
        counted = np.zeros(len(works), np.int32)
        counted[rows] = self.slots.seen.follow(places, starts[rows], states)
        return counted

    def _launch_ahead(self, flight: Flight) -> Flight | None:
        """Queue the step after this one, but for rows that end with it; None if there is none, or no room for it."""
        slots, starts = self.slots, flight.starts + 1
        skipped = (starts > slots.last_start[slots.rows]) | (starts >= self.sizes.context)
        if flight.undrawn is not None:
            # Who was put off computes the same token again.
            for at in flight.undrawn.rows:
                state = flight.works[at].request.row
                skipped[at] |= state is not None and state.put_off
        homeless = np.nonzero(~skipped & ~slots.has_room(starts))[0].tolist()
        if skipped.all() or len(homeless) > len(self._spare):
            return None
        draws = self._draws(flight.works, slots.rows)
        if draws is not None:
            rows, places = draws.penalized(skipped)
            if not slots.seen.follows(places, starts[rows]):
                return None
        spare = dict(zip(homeless, self._spare, strict=False))
        blocks = np.array([[count + block for count in self.sizes.blocks] for block in spare.values()], np.int32)
        slots.put(slots.rows[homeless], (starts[homeless] // BLOCK_TOKENS).astype(np.int32), blocks)
        ahead = self._launch(flight.works, starts, draws, skipped)
        # They are taken when nothing can fail any more.
        del self._spare[: len(spare)]
        ahead.spare = spare
        return ahead

    def _bring_home(self, ahead: Flight, works: Sequence[Decode], row_of: Sequence[int]) -> None:
        if not ahead.spare:
            return
        for work, row in zip(works, row_of, strict=True):
            spare = ahead.spare.get(row)
            if spare is None:
                continue
            block = work.request.table[work.start // BLOCK_TOKENS]
            for memory, count, number in zip(self.memories, self.sizes.blocks, block, strict=True):
                memory.copy_first_token(count + spare, number)

    def _drop_ahead(self) -> None:
        self.pipeline.queued = False
        if self._ahead is not None:
            self._spare += self._ahead.spare.values()
            self._ahead = None

    def _shown(self, flight: Flight) -> torch.Tensor:
        """fp32 logits of all rows, for who wants to see them."""
        if flight.shown is not None:
            return flight.shown
        rows = range(len(flight.works)) if flight.row_of is None else flight.row_of
        return self._exact(self.steps.logits[list(rows)])

    def _exact(self, logits: torch.Tensor) -> torch.Tensor:
        return exact(logits, self.fused.vocabulary)

    # ------------------------------------------------------------ prompts

    def _prefill(self, works: Sequence[Work]) -> Prefilled:
        chunks = [
            Chunk(np.array(work.tokens, np.int32), work.start, np.array(work.request.table, np.int32).T)
            for work in works
        ]
        counts = [work.count for work in works]
        if self._are_short(works):
            return self._prefill_in_graph(works, chunks)
        hidden = self.prefill(chunks, slots_of(works))
        # What is not finite makes its row's sum so as well.
        sums = hidden[: sum(counts)].sum(-1, dtype=torch.float32)
        ends = np.cumsum(counts) - 1
        sampling = [at for at, work in enumerate(works) if work.samples]
        logits = None
        if sampling:
            (rows,) = self.upload([ends[sampling].astype(np.int32)])
            logits = self.fused.head(hidden.index_select(0, rows))
            # The head may make what is not finite of what is.
            sums.index_add_(0, rows, logits[:, : self.fused.vocabulary].sum(-1, dtype=torch.float32))
        return Prefilled(works, hidden, *to_host(sums), sampling, logits)

    def _are_short(self, works: Sequence[Work]) -> bool:
        """Whether a graph computes these chunks; it does not show the hidden states that log probabilities need."""
        if len(works) > MOST_CHUNKS or sum(work.count for work in works) > self.short:
            return False
        return all(work.request.sampling.prompt_logprobs is None for work in works)

    def _prefill_in_graph(self, works: Sequence[Work], chunks: Sequence[Chunk]) -> Prefilled:
        """The same as rows of a decode step."""
        slots, sources = self.slots.place(chunks)
        positions = np.concatenate([np.arange(work.start, work.start + work.count) for work in works])
        rows = len(slots)
        self.steps.run(
            slots, positions.astype(np.int32), np.arange(rows, dtype=np.int32), sources, adapted=slots_of(works)
        )
        found, event = to_host(self.steps.tokens[:rows])
        ends = np.cumsum([work.count for work in works]) - 1
        sampling = [at for at, work in enumerate(works) if work.samples]
        (last,) = self.upload([ends[sampling].astype(np.int32)])
        # Copies: the next step writes over them.
        logits = self.steps.logits.index_select(0, last) if sampling else None
        return Prefilled(works, None, found, event, sampling, logits)

    def _finish_prefill(self, done: Prefilled) -> list[WorkOutcome]:
        """Wait for a pass over prompts."""
        works = done.works
        if done.event is not None:
            done.event.synchronize()
        finite = done.sums.numpy() != NOT_FINITE if done.hidden is None else np.isfinite(done.sums.numpy())
        firsts = np.concatenate([[0], np.cumsum([work.count for work in works])[:-1]])
        sound = np.logical_and.reduceat(finite, firsts).tolist()
        return [
            WorkOutcome(scored=() if done.hidden is None else self._score(work, done.hidden, first))
            if good
            else WorkOutcome(error=not_finite())
            for work, first, good in zip(works, firsts.tolist(), sound, strict=True)
        ]

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._exact(self.fused.head(hidden))
