"""Slots for adapters' weights: a request waits for its adapter as it waits for its blocks.

A slot is held by the requests that were admitted to it until they end, over preemptions too: so a request keeps the
weights that it began with. A slot that nobody holds goes to another adapter, the longest unused first. Weights are made
ready beside the steps, by `run_beside`.

Requests wait in the order of their arrival. While one waits for a free slot, requests of adapters that are there may
overtake it, but not for ever: after MOST_OVERTAKES of them they wait behind it, until a slot is free. Of several slots
a flow gets at most half, so that one tenant's many adapters do not keep out those of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine.scheduling.request import Request
from protocol.adapters import ResidentAdapter

MOST_OVERTAKES = 64


class Adapter(Protocol):
    """What a request names, and how its weights are made."""

    @property
    def name(self) -> str:
        """Its identity: what has the same name has the same weights, and one owner."""
        ...

    def load(self) -> object:
        """Its weights, ready to be multiplied; called in another thread."""
        ...


@dataclass(eq=False)
class _Slot:
    adapter: Adapter
    flow: str
    weights: object = None
    holders: set[int] = field(default_factory=set)
    """Arrivals of requests."""
    gone: bool = False
    """Whether the adapter was deleted: the slot is free once nobody holds it."""

    @property
    def is_held(self) -> bool:
        """Whether it is in use, or its weights are being made."""
        return bool(self.holders) or self.weights is None


class Residency(Protocol):
    """Counts how long each adapter has a slot. The core has no clock of its own."""

    def begin(self, name: str) -> None:
        """The adapter of this name has a slot from now on."""
        ...

    def end(self, name: str) -> None:
        """It has none any more."""
        ...

    def report(self) -> tuple[ResidentAdapter, ...]:
        """What is to be told of all."""
        ...


class NoResidency:
    """Where nobody asks."""

    def begin(self, name: str) -> None: ...

    def end(self, name: str) -> None: ...

    def report(self) -> tuple[ResidentAdapter, ...]:
        return ()


def at_once(work: Callable[[], None]) -> None:
    """Do some work before going on."""
    work()


class AdapterSlots:
    """At most `most` adapters at a time. Called in the engine's thread; `wake` is called in any."""

    def __init__(
        self,
        most: int,
        run_beside: Callable[[Callable[[], None]], None] = at_once,
        residency: Residency | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`clock`: seconds, of which it is told how long weights take."""
        self.most = most
        self.most_of_a_flow = max(1, most // 2)
        self.wake: Callable[[], None] = lambda: None
        self.loads = 0
        """How often weights were made ready."""
        self.load_s = 0.0
        """Seconds that this took in all."""
        self.evictions = 0
        """How often an adapter gave its slot to another one."""
        self.residency: Residency = NoResidency() if residency is None else residency
        self._run_beside = run_beside
        self._clock = clock
        self._slots: dict[str, _Slot] = {}
        """By name; those used longest ago first."""
        self._waiting: dict[int, Request] = {}
        self._overtaken = 0
        """How many requests have got their adapter while the first waited for a free slot."""
        self._starving = False
        """Whether a request waits for a free slot."""
        self._left = False
        """Whether a request has left since `take_ready` looked."""
        self._loaded: deque[tuple[str, object, float]] = deque()
        """What another thread has made ready, and the seconds that it took."""

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def resident(self) -> tuple[str, ...]:
        """The names of the adapters that are in slots."""
        return tuple(self._slots)

    @property
    def has_news(self) -> bool:
        """Whether `take_ready` would give requests now."""
        return bool(self._waiting) and (self._left or bool(self._loaded))

    def delay(self, request: Request) -> bool:
        """Whether a request must wait for its adapter; then `take_ready` gives it later. Else it holds the slot."""
        if request.adapter is None or request.weights is not None:
            return False
        self._waiting[request.arrival] = request
        self._begin_loads()
        self._take_loaded()
        if self._starving and self._overtaken >= MOST_OVERTAKES and request.arrival != next(iter(self._waiting)):
            return True
        if not self._grant(request):
            return True
        del self._waiting[request.arrival]
        self._overtaken += self._starving
        return False

    def leave(self, request: Request) -> bool:
        """The request has ended: it waits no more, or gives its slot back. Returns whether it waited."""
        if request.adapter is None:
            return False
        waited = self._waiting.pop(request.arrival, None) is not None
        slot = self._slots.get(request.adapter.name)
        if slot is not None:
            slot.holders.discard(request.arrival)
            if not slot.is_held and (slot.gone or isinstance(slot.weights, Exception)):
                self._free(request.adapter.name)  # the next one tries again
        self._left = True
        return waited

    def take_ready(self) -> list[Request]:
        """The requests that waited and have their adapter now."""
        if not self.has_news:
            return []
        self._left = False
        self._take_loaded()
        self._begin_loads()
        self._take_loaded()
        ready: list[Request] = []
        for arrival, request in list(self._waiting.items()):
            if self._grant(request):
                del self._waiting[arrival]
                ready.append(request)
            elif self._starving and self._overtaken >= MOST_OVERTAKES:
                break
        return ready

    def forget(self, name: str) -> None:
        """Give up the slot of an adapter that was deleted: now, or when nobody uses it any more."""
        slot = self._slots.get(name)
        if slot is None:
            return
        slot.gone = True
        if not slot.is_held:
            self._free(name)
            self._left = True

    def _free(self, name: str) -> None:
        del self._slots[name]
        self.residency.end(name)

    def _grant(self, request: Request) -> bool:
        assert request.adapter is not None
        slot = self._slots.get(request.adapter.name)
        if slot is None or slot.weights is None:
            return False
        slot.holders.add(request.arrival)
        request.weights = slot.weights
        self._slots[request.adapter.name] = self._slots.pop(request.adapter.name)
        return True

    def _begin_loads(self) -> None:
        """Give slots that are free to the adapters that are waited for, in the order of the requests."""
        self._starving = False
        wanted: set[str] = set()
        for request in self._waiting.values():
            adapter = request.adapter
            assert adapter is not None
            if adapter.name not in self._slots and not self._has_its_share(request.flow):
                if not self._make_room(wanted):
                    self._starving = True
                    return
                self._overtaken = 0
                self._slots[adapter.name] = _Slot(adapter, request.flow)
                self._run_beside(self._loader(adapter))
            wanted.add(adapter.name)

    def _has_its_share(self, flow: str) -> bool:
        own = sum(slot.flow == flow and slot.is_held for slot in self._slots.values())
        return own >= self.most_of_a_flow

    def _make_room(self, wanted: set[str]) -> bool:
        """Free a slot if none is: the one longest unused, but for those that requests before have waited for."""
        if len(self._slots) < self.most:
            return True
        idle = next((name for name, slot in self._slots.items() if not slot.is_held and name not in wanted), None)
        if idle is None:
            return False
        self._free(idle)
        self.evictions += 1
        return True

    def _loader(self, adapter: Adapter) -> Callable[[], None]:
        return lambda: self._load(adapter)

    def _load(self, adapter: Adapter) -> None:
        """Runs in another thread. Weights that cannot be made are an error, which fails the requests that use them."""
        began = self._clock()
        try:
            weights = adapter.load()
        except Exception as error:
            weights = error
        self._loaded.append((adapter.name, weights, self._clock() - began))
        self.wake()

    def _take_loaded(self) -> None:
        while self._loaded:
            name, weights, seconds = self._loaded.popleft()
            slot = self._slots.get(name)
            if slot is not None and slot.weights is None:
                slot.weights = weights
                if isinstance(weights, Exception):
                    continue
                if slot.gone and not any(one.adapter and one.adapter.name == name for one in self._waiting.values()):
                    self._free(name)  # whoever waited for it has left
                    continue
                self.loads, self.load_s = self.loads + 1, self.load_s + seconds
                self.residency.begin(name)
