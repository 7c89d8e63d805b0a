"""Adapters in a GPU's memory: slots of equal size, filled from page-locked host memory beside the steps.

A slot holds an adapter of up to `rank`; who has its `DeviceAdapter` has the slot, until nobody has. Rows that were
computed ahead for a request that has ended may still read a slot that another adapter is copied to: nobody reads what
becomes of them, and what a slot is said to hold is always within it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import structlog
import torch

from engine.adapters.adapter_weights import Target, check_fit, matrix
from engine.kernels.low_rank import PLANE_RANKS, Place, Slots, expand, shrink
from engine.kernels.uploads import Ints
from engine.scheduling.step_work import Work
from model_files.adapter_config import AdapterRefused
from model_files.adapter_file import AdapterFile

logger = structlog.get_logger("engine.cuda.adapters")

NO_SLOT = -1
_MEMORY_SHARE = 16
"""Slots take at most one part in so many of the device's memory."""


@dataclass(frozen=True, eq=False)
class DeviceAdapter:
    """An adapter that is in a slot, as long as this object is held."""

    slot: int


@dataclass(frozen=True)
class _Packed:
    """An adapter in page-locked memory. `spans`: (plane, its first element, the content's first element, elements)."""

    content: torch.Tensor
    spans: Sequence[tuple[int, int, int, int]]
    counts: torch.Tensor
    scales: torch.Tensor


def places_of(targets: Mapping[str, Target]) -> tuple[dict[str, Place], int]:
    """Where the matrices of each target lie in a plane, and a plane's elements."""
    places: dict[str, Place] = {}
    elements = part = 0
    for name, target in targets.items():
        bounds = tuple(sorted({edge for columns in target.parts.values() for edge in columns}))
        b = elements + PLANE_RANKS * target.inputs * (len(bounds) - 1)
        places[name] = Place(target.inputs, bounds, part, elements, b)
        elements, part = b + PLANE_RANKS * bounds[-1], part + len(bounds) - 1
    return places, elements


class AdapterMemory:
    """`slots` slots for adapters of the base model's `targets`, of ranks up to `rank`, in the type of `like`."""

    def __init__(self, targets: Mapping[str, Target], like: torch.Tensor, slots: int, rank: int) -> None:
        self.targets, self.rank = targets, rank
        self.places, elements = places_of(targets)
        device, parts = like.device, sum(place.parts for place in self.places.values())
        self.planes = -(-rank // PLANE_RANKS)
        self.slots = Slots(
            torch.zeros(slots, self.planes, elements, dtype=like.dtype, device=device),
            torch.zeros(slots, parts, dtype=torch.int32, device=device),
            torch.zeros(slots, parts, device=device),
        )
        self.count = slots
        self._free = list(range(slots))
        self._freed = threading.Condition(threading.RLock())  # an object may be given up within this module as well
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._most_sums = max(place.sums for place in self.places.values())

    @staticmethod
    def fitting(targets: Mapping[str, Target], like: torch.Tensor, slots: int, rank: int) -> AdapterMemory | None:
        """One with at most `slots` slots, as many as a share of the device's memory holds; None if it holds none."""
        if not targets or not slots:
            return None
        size = places_of(targets)[1] * -(-rank // PLANE_RANKS) * like.itemsize
        total = torch.cuda.get_device_properties(like.device).total_memory
        count = min(slots, total // _MEMORY_SHARE // size)
        if count < slots:
            logger.warning("the device has fewer slots for adapters than asked for", slots=count, rank=rank, bytes=size)
        return AdapterMemory(targets, like, count, rank) if count else None

    # ------------------------------------------------------------ filling slots

    def prepare(self, file: AdapterFile) -> Callable[[], DeviceAdapter]:
        """What puts an adapter into a slot; it is packed now. Raises AdapterRefused for what does not fit."""
        check_fit(file, self.targets)
        if file.rank > self.rank:
            raise AdapterRefused("r", f"rank {file.rank} is more than this replica computes, {self.rank}")
        packed = self._pack(file)
        return lambda: self._load(packed)

    def _pack(self, file: AdapterFile) -> _Packed:
        counts, scales = (torch.zeros_like(there[0], device="cpu") for there in (self.slots.counts, self.slots.scales))
        pieces: list[tuple[int, int, torch.Tensor]] = []
        for name, target in self.targets.items():
            place = self.places[name]
            for module, (start, stop) in target.parts.items():
                if module in file.modules:
                    adapted = file.modules[module]
                    a, b = matrix(adapted.a), matrix(adapted.b)
                    planes = -(-adapted.rank // PLANE_RANKS)
                    a = _padded(a, planes).view(planes, PLANE_RANKS, -1)
                    b = _padded(b.t(), planes).view(planes, PLANE_RANKS, -1).transpose(1, 2)
                    for part, (first, last) in enumerate(pairwise(place.bounds)):
                        if start <= first < stop:
                            counts[place.part + part], scales[place.part + part] = planes, adapted.scale
                            at_a = place.a + part * PLANE_RANKS * place.inputs
                            for plane in range(planes):
                                pieces.append((plane, at_a, a[plane]))
                                at_b = place.b + PLANE_RANKS * first
                                pieces.append((plane, at_b, b[plane, first - start : last - start]))
        pieces.sort(key=lambda piece: piece[:2])
        size = sum(piece.numel() for *_, piece in pieces)
        content = torch.empty(size, dtype=self.slots.planes.dtype, pin_memory=self._stream is not None)
        spans: list[tuple[int, int, int, int]] = []
        at = 0
        for plane, first, piece in pieces:
            content[at : at + piece.numel()].view(piece.shape).copy_(piece)
            if spans and spans[-1][0] == plane and spans[-1][1] + spans[-1][3] == first:
                spans[-1] = (*spans[-1][:3], spans[-1][3] + piece.numel())  # one copy for neighbours
            else:
                spans.append((plane, first, at, piece.numel()))
            at += piece.numel()
        return _Packed(content, spans, counts, scales)

    def _load(self, packed: _Packed) -> DeviceAdapter:
        """Fill a slot, as soon as one is free; called in any thread."""
        with self._freed:
            self._freed.wait_for(lambda: self._free)
            adapter = DeviceAdapter(self._free.pop())
        weakref.finalize(adapter, self._give_back, adapter.slot).atexit = False
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            there = self.slots.planes[adapter.slot]
            for plane, first, at, count in packed.spans:
                there[plane, first : first + count].copy_(packed.content[at : at + count], non_blocking=True)
            self.slots.counts[adapter.slot].copy_(packed.counts)
            self.slots.scales[adapter.slot].copy_(packed.scales)
        if self._stream is not None:
            self._stream.synchronize()
        return adapter

    def _give_back(self, slot: int) -> None:
        with self._freed:
            self._free.append(slot)
            self._freed.notify()

    # ------------------------------------------------------------ passes

    def sums_for(self, rows: int) -> torch.Tensor:
        """Memory for what `shrink` gives to `expand` in a pass of so many rows."""
        return torch.empty(rows * self.planes * self._most_sums, device=self.slots.planes.device)


@dataclass(frozen=True)
class AdaptedRows:
    """The rows of a pass that have adapters, in `tiles` of `low_rank`, and memory for their `sums`."""

    memory: AdapterMemory
    tiles: torch.Tensor
    sums: torch.Tensor

    def shrink(self, name: str, x: torch.Tensor, *, ahead: bool) -> None:
        """Before the product of the target `name`: multiply its rows x by A."""
        place = self.memory.places.get(name)
        if place is not None:
            shrink(x, self.memory.slots, place, self.tiles, self.sums, ahead=ahead)

    def expand(self, name: str, y: torch.Tensor, *, ahead: bool) -> None:
        """Behind it: add what the adapters have for its results y."""
        place = self.memory.places.get(name)
        if place is not None:
            expand(y, self.memory.slots, place, self.tiles, self.sums, ahead=ahead)


def slots_of(works: Sequence[Work]) -> Ints | None:
    """In which slot the adapter of each row of these works is, NO_SLOT for a row of the base; None if all are that."""
    if all(work.request.adapter is None for work in works):
        return None
    rows = np.full(sum(work.count for work in works), NO_SLOT, np.int32)
    at = 0
    for work in works:
        request = work.request
        if request.adapter is not None:
            if not isinstance(request.weights, DeviceAdapter):
                raise RuntimeError(f"the adapter could not be loaded: {request.weights}")
            first = max(work.start, request.adapted_from) - work.start
            rows[at + first : at + work.count] = request.weights.slot
        at += work.count
    return rows if (rows >= 0).any() else None


def _padded(matrix: torch.Tensor, planes: int) -> torch.Tensor:
    """With zeros below, up to so many planes' ranks."""
    return torch.nn.functional.pad(matrix, (0, 0, 0, planes * PLANE_RANKS - len(matrix)))
