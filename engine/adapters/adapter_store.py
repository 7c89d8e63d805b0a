"""The adapters that a replica has in host memory, checked, by digest; the least recently used are given up first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.adapters.adapter_weights import Prepare
from engine.scheduling.adapter_slots import AdapterSlots
from model_files.adapter_config import AdapterRefused
from model_files.adapter_file import AdapterFile, read_packed
from prompt_cache.kv.block_keys import BLOCK_TOKENS, KeyFork

_MOST_REFUSALS = 1000


def in_a_thread(work: Callable[[], None]) -> None:
    """Do some work beside the caller."""
    threading.Thread(target=work, name="adapter", daemon=True).start()


class StoredAdapter:
    """An adapter in host memory. Its weights are made when a slot is free for them."""

    def __init__(self, file: AdapterFile, load: Callable[[], object]) -> None:
        """`load`: makes its weights ready to be multiplied; it is called in other threads."""
        self.file = file
        self.load = load
        self.scopes: set[str] = set()
        """The scopes, by their owners, whose requests have named it: it goes with the last of them."""

    @property
    def digest(self) -> str:
        """Its identity."""
        return self.file.digest

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
        return KeyFork(self.start // BLOCK_TOKENS, self.adapter.digest)


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

    def find(self, digest: str) -> StoredAdapter | None:
        """The adapter with this digest, if it is here. It counts as used."""
        with self._lock:
            found = self._adapters.get(digest)
            if found is not None:
                self._adapters.move_to_end(digest)
            return found

    def take(self, digest: str, content: bytes) -> StoredAdapter:
        """Check the content of an adapter and keep it. Raises AdapterRefused, also if it has another digest."""
        file = read_packed(content, self.base)
        if file.digest != digest:
            raise AdapterRefused("digest", "the content is not that of the adapter which was asked for")
        if file.bytes > self.most_bytes:
            raise AdapterRefused("adapter_model.safetensors", f"{file.bytes} bytes are more than this replica keeps")
        adapter = StoredAdapter(file, self._prepare(file))
        with self._lock:
            self._remove(digest)
            self._adapters[digest] = adapter
            self._bytes += file.bytes
            while self._bytes > self.most_bytes:
                self._remove(next(iter(self._adapters)))
        return adapter

    def knows(self, digest: str) -> bool:
        """Whether the adapter is here, or was refused: then nobody needs to send it."""
        with self._lock:
            return digest in self._adapters or digest in self._refusals

    def refuse(self, digest: str, problem: str) -> None:
        """Remember why the adapter with this digest cannot be served."""
        with self._lock:
            self._refusals[digest] = problem
            if len(self._refusals) > _MOST_REFUSALS:
                self._refusals.popitem(last=False)

    def refusal(self, digest: str) -> str | None:
        """Why the adapter with this digest cannot be served, if it was refused."""
        with self._lock:
            return self._refusals.get(digest)

    def drop(self, digest: str) -> None:
        """Give an adapter up."""
        with self._lock:
            self._remove(digest)

    def forget(self, scope: str) -> list[str]:
        """A scope's data key was destroyed: give up the adapters that only its requests have named. Returns their
        digests."""
        with self._lock:
            named = [adapter for adapter in self._adapters.values() if scope in adapter.scopes]
            for adapter in named:
                adapter.scopes.discard(scope)
            gone = [adapter.digest for adapter in named if not adapter.scopes]
            for digest in gone:
                self._remove(digest)
            return gone

    def _remove(self, digest: str) -> None:
        gone = self._adapters.pop(digest, None)
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
    return Adapters(AdapterStore(prepare, base, most_bytes), AdapterSlots(slots, run_beside))
