"""What the device holds of each decoding request, by slot: its block table and its latest token.

A request keeps its slot while it decodes, whatever row it has in a step. A step sends only what has changed. Behind the
slots there is room for short chunks of prompts, which are there for one step: their tables, and their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.execution.cuda.draws import Drawing, Draws, compose, drawing_of, is_guided
from engine.execution.cuda.seen_tokens import SeenTokens
from engine.kernels.sampler import WORDS
from engine.kernels.uploads import Ints, Uploads
from engine.scheduling.step_work import Decode
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import Block

NOWHERE = -1
MOST_CHUNKS = 8
"""Short chunks in a step."""
_ANSWERS = 8
"""Groups of rows that are drawn at a time in a step, and a few of the steps before."""


def spare_blocks(running: int) -> int:
    """How many blocks to have beside the scheduler's."""
    return max(1, running // 8)


class DraftsUnsupported(Exception):
    """A decode has more rows than a request may have."""


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence from position `start` on; `table` [layer groups, blocks] are its blocks."""

    tokens: Ints
    start: int
    table: Ints


class Slots:
    """`count` slots of tables with up to `blocks` blocks in each of the layer groups, and `tokens` of short chunks or
    of rows with drafts, `drafts` of a request.

    After `bind`: `works` are the requests of the step, `rows` their slots, and `order` the rows sorted so that those
    which begin with the same blocks are neighbours. `token_at` by slot: the position of the latest token on the device.
    `last_start` by slot: the last position that the request computes before it ends by its length.
    """

    def __init__(
        self,
        count: int,
        blocks: int,
        groups: int,
        vocabulary: int,
        upload: Uploads,
        *,
        tokens: int = 0,
        drafts: int = 0,
    ) -> None:
        self.upload, device = upload, upload.device
        self.count, self.drafts = count, drafts
        tables = (count + MOST_CHUNKS, blocks)
        self.block_tables = [torch.zeros(tables, dtype=torch.int32, device=device) for _ in range(groups)]
        self.latest = torch.zeros(count + tokens, dtype=torch.int32, device=device)
        self.token_at = np.full(count, NOWHERE, np.int64)
        self.last_start = np.zeros(count, np.int64)
        self.held = np.zeros(count, np.int64)
        """How many blocks of each slot's table are on the device."""
        self.works: Sequence[Decode] = ()
        self.rows: Ints = np.zeros(0, np.int32)
        self.order: Ints = np.zeros(0, np.int32)
        self.seen = SeenTokens(count, vocabulary, upload)
        self.guided = np.zeros(count, np.bool_)
        """Of which slots' tokens the host has a say."""
        self._parameters = np.zeros((count, WORDS.value), np.int64)
        self._drawings: dict[int, Drawing] = {}
        self._draws: dict[tuple[bytes, tuple[int, ...], bool], Draws | None] = {}
        """The last answers of `draws_of`."""
        self._tables = np.full((count, blocks, groups), NOWHERE, np.int32)
        """What was written to the tables on the device."""
        self._written: dict[int, Sequence[Block]] = {}
        """The same by slot, of slots whose requests have been bound: tables rarely change, drafts in every step."""
        self._free = list(range(count - 1, -1, -1))
        self._slots: dict[Decode, int] = {}
        self._revisions: list[int] = []

    def bind(self, works: Sequence[Decode]) -> None:
        """Make these the step's requests, and bring their tables up to date. Raises DraftsUnsupported."""
        revisions = [work.revision for work in works]
        same = works is self.works or works == self.works
        if same and revisions == self._revisions:
            return
        if not same:
            self._assign(works)
        before = self._revisions if same else [NOWHERE] * len(works)
        changed = [at for at, (old, new) in enumerate(zip(before, revisions, strict=True)) if old != new]
        self._renew([(works[at], int(self.rows[at])) for at in changed])
        self._revisions = revisions
        if not same:
            self.order = self._sorted()

    def forget(self) -> None:
        """Take nothing for granted of what the device holds: a step failed, and nobody knows what of it was done."""
        self.works, self._revisions, self._slots = (), [], {}
        self.rows = self.order = np.zeros(0, np.int32)
        self._free = list(range(self.count - 1, -1, -1))
        self.token_at[:] = self._tables[:] = NOWHERE
        self.held[:] = 0
        self.seen.forget(slice(None))
        self._drawings, self._draws, self._written = {}, {}, {}

    def put(self, slots: Ints, places: Ints, blocks: Ints) -> None:
        """Write `blocks` [entries, layer groups] to these places of these slots' tables on the device."""
        if not len(slots):
            return
        width = self.block_tables[0].shape[1]
        there = self.upload([slots * width + places, *np.ascontiguousarray(blocks.T)])
        index = there[0].long()
        for table, values in zip(self.block_tables, there[1:], strict=True):
            table.view(-1).index_copy_(0, index, values)

    def tell(self, slots: Ints, tokens: Sequence[int]) -> None:
        """Write the latest tokens of these slots."""
        there = self.upload([slots, np.array(tokens, np.int32)])
        self.latest.index_copy_(0, there[0].long(), there[1])

    def draws_of(self, slots: Ints, changed: Sequence[int], *, deferred: bool = False) -> Draws | None:
        """How rows with these slots get their tokens, of which the device changes the logits of the rows `changed`.

        None if all of them take the likeliest one. `deferred`: they are those of which the host has a say. Else such
        rows are left out.
        """
        asked = slots.tobytes(), tuple(changed), deferred
        if asked not in self._draws:
            if len(self._draws) >= _ANSWERS:
                self._draws.clear()
            theirs = slots[list(changed)]
            drawings = [self._drawings[slot] for slot in theirs.tolist()]
            left_out = None if deferred else self.guided[slots]
            self._draws[asked] = compose(
                self._parameters[slots], changed, drawings, theirs, self.upload, left_out=left_out
            )
        return self._draws[asked]

    def plain_draws(self, slots: Ints, left_out: NDArray[np.bool_]) -> Draws | None:
        """How the rows with these slots get their tokens from logits as they are, but those that are left out."""
        return compose(self._parameters[slots], (), (), slots[:0], self.upload, left_out=left_out)

    def place_tokens(self, tokens: Sequence[int]) -> Ints:
        """Write the tokens of a step's rows behind the slots, in the place of the last ones; returns where they are."""
        sources = self.count + np.arange(len(tokens), dtype=np.int32)
        self.tell(sources, tokens)
        return sources

    def place(self, chunks: Sequence[Chunk]) -> tuple[Ints, Ints]:
        """Write what short chunks need behind the slots, in the place of the last ones.

        Returns for each of their rows where its table and its token are.
        """
        wide = [chunk.table.shape[1] for chunk in chunks]
        tables = self.count + np.arange(len(chunks), dtype=np.int32)
        places = [np.arange(blocks, dtype=np.int32) for blocks in wide]
        self.put(np.repeat(tables, wide), np.concatenate(places), np.concatenate([chunk.table.T for chunk in chunks]))
        sources = self.place_tokens(np.concatenate([chunk.tokens for chunk in chunks]).tolist())
        return np.repeat(tables, [len(chunk.tokens) for chunk in chunks]), sources

    def _assign(self, works: Sequence[Decode]) -> None:
        slots, staying = self._slots, set(works)
        for work in [work for work in slots if work not in staying]:
            self._free.append(slots.pop(work))
        for work in works:
            if work not in slots:
                slot = slots[work] = self._free.pop()
                self.token_at[slot], self.held[slot] = NOWHERE, 0
                self._tables[slot] = NOWHERE
                self._written.pop(slot, None)
                drawing = self._drawings[slot] = drawing_of(work.request.sampling, work.request.row)
                self._parameters[slot] = drawing.parameters
                self.guided[slot] = is_guided(work.request)
                self.seen.until[slot] = NOWHERE
                self._draws.clear()
        # A copy: it must not change while we compare with it.
        self.works = list(works) if not isinstance(works, list) else works
        self.rows = np.array([slots[work] for work in works], np.int32)

    def _renew(self, changed: Sequence[tuple[Decode, int]]) -> None:
        slots, places, blocks, new_tables = [], [], [], []
        for work, slot in changed:
            request = work.request
            if len(work.drafts) > self.drafts:  # whoever sets some raises the revision
                raise DraftsUnsupported(
                    f"drafts: {len(work.drafts)} of request {request.id}, {self.drafts} can be verified here"
                )
            self.last_start[slot] = request.prompt + request.max_output - 2
            if self._written.get(slot) == request.table:
                continue
            table = np.array(request.table, np.int32)
            # Not only its end: a block that was there already takes the place of the same one that it filled itself.
            new = (table != self._tables[slot, : len(table)]).any(1).nonzero()[0].astype(np.int32)
            new_tables.append((slot, table, list(request.table)))
            slots.append(np.full(len(new), slot, np.int32))
            places.append(new)
            blocks.append(table[new])
        if slots:
            self.put(np.concatenate(slots), np.concatenate(places), np.concatenate(blocks))
        # Only now: what was not written must not pass for it.
        for slot, table, blocks_of in new_tables:
            self._written[slot] = blocks_of
            self._tables[slot, : len(table)] = table
            self.held[slot] = len(table)

    def _sorted(self) -> Ints:
        if not len(self.rows):
            return self.rows
        width = int(self.held[self.rows].max())
        keys = [self._tables[slot, :width, 0].tobytes() for slot in self.rows]
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int32)

    def has_room(self, positions: np.ndarray) -> np.ndarray:
        """For each row whether its table reaches this position."""
        room: np.ndarray = positions < self.held[self.rows] * BLOCK_TOKENS
        return room
