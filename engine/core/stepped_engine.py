"""What a replica steps and passes messages to: our engine, or one that is not ours behind the same interface."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from engine.adapters.adapter_store import AdapterStore
from engine.core.output_processor import StepResult
from engine.scheduling.tier import Tier
from protocol.replicas import Heartbeat, Scope
from protocol.requests import Generate


class StepTimes(Protocol):
    """What a step loop asks of the device: see `StepExecutor`."""

    def call_while_computing(self, meanwhile: Callable[[Callable[[], bool]], None]) -> None: ...

    def idles_between_steps(self) -> bool: ...


class NoDevice:
    """What a step loop asks of a device, where there is none here."""

    def call_while_computing(self, meanwhile: Callable[[Callable[[], bool]], None]) -> None:
        """Nothing is computed here."""

    def idles_between_steps(self) -> bool:
        """No device waits."""
        return False


class SteppedEngine(Protocol):
    """See `Engine`, whose methods these are. One thread makes all calls but `look_up` and `record_stall`."""

    @property
    def executor(self) -> StepTimes: ...

    @property
    def adapters(self) -> AdapterStore | None: ...

    @property
    def tiers(self) -> Sequence[Tier]: ...

    @property
    def longest_step_s(self) -> float: ...

    @property
    def busy(self) -> bool: ...

    @property
    def next_deadline(self) -> float | None: ...

    def add(
        self, generate: Generate, scopes: Mapping[str, Scope], grammar: Any = None, *, arrived: float | None = None
    ) -> None: ...

    def look_up(self, generate: Generate, scopes: Mapping[str, Scope], looked: Callable[[], None]) -> bool: ...

    def abort(self, id: str, choice: int | None = None, attempt: int = 0) -> bool: ...

    def credit(self, id: str, delivered: int, limit: int, attempt: int = 0) -> tuple[int, int] | None: ...

    def introduce(self, scope: Scope) -> None: ...

    def forget(self, scope: str) -> None: ...

    def purge(self, scope: str, keys: Collection[bytes]) -> None: ...

    def drop_adapter(self, digest: str) -> None: ...

    def record_remote_service(self, replica: str, epoch: int, service: Mapping[str, int]) -> None: ...

    def record_stall(self) -> list[str]: ...

    def call_when_restored(self, wake: Callable[[], None]) -> None: ...

    def step(self) -> StepResult: ...

    def heartbeat(self) -> Heartbeat: ...

    def close(self, seconds: float) -> None: ...
