"""The adapters that a replica has in host memory, checked, by name; the least recently used are given up first."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.adapters.adapter_residency import AdapterResidency
from engine.adapters.adapter_weights import Prepare
from engine.scheduling.adapter_slots import AdapterSlots
from model_files.adapter_config import AdapterRefused
from model_files.adapter_file import AdapterFile, read_packed
from prompt_cache.kv.block_keys import BLOCK_TOKENS, KeyFork
from protocol.adapters import digest_of

_MOST_REFUSALS = 1000


def in_a_thread(work: Callable[[], None]) -> None:
    """Do some work beside the caller."""
    threading.Thread(target=work, name="adapter", daemon=True).start()


class StoredAdapter:
    """An adapter in host memory, under its name. Its weights are made when a slot is free for them."""

    def __init__(self, name: str, file: AdapterFile, load: Callable[[], object]) -> None:
        """`load`: makes its weights ready to be multiplied; it is called in other threads."""
        self.name = name
        self.file = file
        self.load = load
        self.scopes: set[str] = set()
        """The scopes, by their owners, whose requests have named it: it goes with the last of them."""

    def acts_from(self, prompt: Sequence[int]) -> int | None:
        """From which position of the prompt on it acts: 0, or the beginning of the last sequence that invokes it, in
        tokens; None if that is not there."""
        invocation = self.file.config.invocation
        if not invocation:
            return 0
        tokens, starts = np.array(prompt, np.int64), len(prompt) - len(invocation) + 1
        if starts < 1:
            return None
        invoked = np.ones(starts, bool)
        for at, token in enumerate(invocation):
            invoked &= tokens[at : at + starts] == token
        places = np.flatnonzero(invoked)
        return int(places[-1]) if len(places) else None


@dataclass(frozen=True)
class InvokedAdapter:
    """An adapter that acts from the position `start` of a prompt on."""

    adapter: StoredAdapter
    start: int

    @property
    def key_fork(self) -> KeyFork:
        """Where the keys of the prompt's blocks become the adapter's."""
        return KeyFork(self.start // BLOCK_TOKENS, self.adapter.file.digest)


class AdapterStore:
    """The adapters of one base model, at most `most_bytes` of them. `prepare`: as in `Prepare`. Any thread may call."""

    def __init__(self, prepare: Prepare, base: str, most_bytes: int) -> None:
        self.base = base
        self.most_bytes = most_bytes
        self._prepare = prepare
        self._adapters: OrderedDict[str, StoredAdapter] = OrderedDict()
        self._refusals: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, name: str) -> StoredAdapter | None:
        """The adapter of this name, if it is here. It counts as used."""
        with self._lock:
            found = self._adapters.get(name)
            if found is not None:
                self._adapters.move_to_end(name)
            return found

    def take(self, name: str, content: bytes) -> StoredAdapter:
        """Check the content of an adapter and keep it. Raises AdapterRefused, also if it has another digest."""
        file = read_packed(content, self.base)
        if file.digest != digest_of(name):
            raise AdapterRefused("digest", "the content is not that of the adapter which was asked for")
        if file.bytes > self.most_bytes:
            raise AdapterRefused("adapter_model.safetensors", f"{file.bytes} bytes are more than this replica keeps")
        adapter = StoredAdapter(name, file, self._prepare(file))
        with self._lock:
            self._remove(name)
            self._adapters[name] = adapter
            self._bytes += file.bytes
            while self._bytes > self.most_bytes:
                self._remove(next(iter(self._adapters)))
        return adapter

    @property
    def held(self) -> tuple[int, int]:
        """How many adapters are here, and their bytes."""
        with self._lock:
            return len(self._adapters), self._bytes

    def knows(self, name: str) -> bool:
        """Whether the adapter is here, or was refused: then nobody needs to send it."""
        with self._lock:
            return name in self._adapters or name in self._refusals

    def refuse(self, name: str, problem: str) -> None:
        """Remember why the adapter of this name cannot be served."""
        with self._lock:
            self._refusals[name] = problem
            if len(self._refusals) > _MOST_REFUSALS:
                self._refusals.popitem(last=False)

    def refusal(self, name: str) -> str | None:
        """Why the adapter of this name cannot be served, if it was refused."""
        with self._lock:
            return self._refusals.get(name)

    def drop(self, name: str) -> None:
        """Give an adapter up."""
        with self._lock:
            self._remove(name)

    def forget(self, scope: str) -> list[str]:
        """A scope's data key was destroyed: give up the adapters that only its requests have named. Returns their
        names."""
        with self._lock:
            named = [adapter for adapter in self._adapters.values() if scope in adapter.scopes]
            for adapter in named:
                adapter.scopes.discard(scope)
            gone = [adapter.name for adapter in named if not adapter.scopes]
            for name in gone:
                self._remove(name)
            return gone

    def _remove(self, name: str) -> None:
        gone = self._adapters.pop(name, None)
        self._bytes -= 0 if gone is None else gone.file.bytes


@dataclass(frozen=True)
class Adapters:
    """What an engine needs for adapters: those in host memory, and slots for weights."""

    store: AdapterStore
    slots: AdapterSlots


def adapters_of(
    prepare: Prepare,
    base: str,
    *,
    slots: int,
    most_bytes: int,
    run_beside: Callable[[Callable[[], None]], None] = in_a_thread,
) -> Adapters:
    """Adapters of a model whose runner computes them. `base`: what tells the model from others. `run_beside`: as of
    `AdapterSlots`."""
    return Adapters(
        AdapterStore(prepare, base, most_bytes), AdapterSlots(slots, run_beside, AdapterResidency(), time.perf_counter)
    )
