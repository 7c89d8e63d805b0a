"""What a step of the engine hands out: what is to be told to gateways, and what is to be written to the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from engine.protocol.requests import Began, Counts, Done, PromptLogprobs, Tokens

Event: TypeAlias = Began | PromptLogprobs | Tokens | Done


@dataclass(frozen=True)
class Progress:
    """A request's counts after a step, for the journal."""

    id: str
    attempt: int
    counts: Counts


@dataclass
class StepResult:
    """What happened since the last call, in order. `ran`: whether a step was computed."""

    events: list[Event] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    claims: dict[str, bytes] = field(default_factory=dict)
    """Of the requests that began, those that have one."""
    ran: bool = False
