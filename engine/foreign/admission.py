"""Which requests a foreign engine takes: what it can do, whose they are, how many may wait."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.core.engine import EngineLimits
from engine.core.input_processor import Rejected
from engine.core.parent_request import ParentRequest
from engine.foreign.engine_client import EngineClient, ForeignRequest, Unsupported, salt_of
from engine.scheduling.fairness.fair_share import FairShare
from engine.scheduling.fairness.queue_limits import expected_wait
from protocol.replicas import Scope
from protocol.requests import Generate, Refusal


class OneProject:
    """The project that an engine is for: the first that comes, for good. What others leave in the engine's slots could
    be found by it, so that they may not use it at all. `file` keeps who it is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._owner = file.read_text() if file.is_file() else ""

    def is_of(self, owner: str) -> bool:
        """Whether it is this scope's; it becomes so if it was nobody's. Raises OSError."""
        if not self._owner:
            beside = self._file.with_suffix(".new")
            beside.write_text(owner)
            beside.replace(self._file)
            self._owner = owner
        return owner == self._owner


def check_abilities(client: EngineClient, generate: Generate) -> None:
    """Raise Rejected for what the engine cannot do."""
    reasoning = generate.reasoning
    if reasoning is not None and (reasoning.budget is not None or generate.grammar is not None):
        raise Rejected("reasoning: a foreign engine knows neither its budget nor where a grammar begins after it")
    if generate.grammar is not None and any(generate.emitted):
        raise Rejected("grammar: a foreign engine cannot go on within one")
    if generate.adapter:
        raise Rejected("adapter: a foreign engine computes no adapters of ours", invalid="adapter")
    try:
        client.check(ForeignRequest("", (), generate.sampling, 0, "", generate.grammar))
    except Unsupported as error:
        invalid = "grammar" if generate.grammar is not None and str(error).startswith("grammar") else None
        raise Rejected(str(error), invalid=invalid) from error
    except ValueError as error:
        raise Rejected(f"grammar: {error}", invalid="grammar") from error


def cache_salt(client: EngineClient, generate: Generate, scopes: Mapping[str, Scope]) -> str:
    """The salt of its prompt in the engine's cache; empty where nothing may be shared."""
    last = generate.segments[-1].scope
    if generate.store == "none" or not generate.read or not client.shares:
        return ""
    return salt_of(scopes[last].root)


def check_queue(limits: EngineLimits, fairness: FairShare, parent: ParentRequest) -> None:
    """Raise Rejected, with an estimate of the wait, if too many requests wait already; one that goes on may."""
    bounds, request, admitted = limits.bounds, parent.first, parent.earlier is not None
    if not admitted and len(fairness) >= bounds.requests:
        refusal = Refusal("replica", expected_wait(fairness, request))
        raise Rejected(f"the queue is full: {bounds.requests} requests wait", refusal)
    full = None if admitted else bounds.refusal(fairness, request)
    if full is not None:
        raise Rejected(f"the queue of this {full.whose} is full; a request would wait {full.wait_s:.0f} s", full)
