"""What a replica's last word means: for the client, for whose fault the end is, and for what is recorded."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec.structs import replace

from gateway.errors import GatewayError, Interrupted, InvalidField, InvalidRequest, RateLimited, TimedOut, Unavailable
from gateway.fleet.replica_stream import ReplicaStream
from gateway.generation.delivery import FinishReason
from gateway.generation.request_state import Outcome, failed
from gateway.generation_request import Grammar
from gateway.metering.billable_usage import Fault, FinishedRequest
from protocol.requests import Began, Counts, Done, Refusal

ChoiceEnd: TypeAlias = Literal["stop", "budget"] | None
"""Why the gateway ended a choice: a stop string completed, or no more could be paid for. None: it did not."""

Undone: TypeAlias = Literal["lost", "stopped", "refused"]
"""What became of a replica that did not do what it was asked: it was lost, it stopped, or it refused."""


def outcome_of(done: Done | None, ends: Sequence[FinishReason] = ()) -> Outcome:
    """The outcome that `done` means for a request that nothing else has ended. None: the replica never said how.

    `ends`: how each choice ended, if well.
    """
    reason = "lost" if done is None else done.reason
    unpaid = "budget" in ends
    if reason in ("stop", "length", "budget") or (unpaid and reason in ("abort", "lost")):
        return Outcome("ok", "budget" if unpaid else reason)
    if done is not None and done.invalid == "adapter":  # it does not fit the base, or the prompt does not invoke it
        problem = (done.error or "it cannot be computed").removeprefix("adapter: ")
        return failed(InvalidField("$.model", problem, code="invalid_adapter"), reason)
    return failed(_failure(reason, None if done is None else done.refusal), reason)


def invalid_grammar(done: Done, grammar: Grammar) -> Outcome | None:
    """The outcome if the replica found the client's grammar to be wrong, else None."""
    if done.invalid != "grammar":
        return None
    path, problem = grammar.path, (done.error or "").removeprefix("grammar: ")
    if path == "$.tools":
        if of_schema := re.match(r"schema (\d+): ", problem):
            path, problem = grammar.tool_paths[int(of_schema[1])], problem[of_schema.end() :]
        else:  # the grammar is ours, and what a compiler says of it means nothing to the client
            problem = "an answer cannot be held to these schemas; leave out what is unusual in them, or use 'auto'"
    return failed(InvalidRequest(f"{path}: {problem}.", path=path, code="invalid_value"), done.reason)


def finish_reasons(
    done: Done | None, choice_ends: Sequence[ChoiceEnd], *, shortened: bool = False
) -> tuple[FinishReason, ...]:
    """How each choice ended that came to a good end. `shortened`: the length was what could be paid for."""
    reasons = (done.reasons or (done.reason,)) if done is not None else ()

    def finish(choice: int, ended: ChoiceEnd) -> FinishReason:
        reason = reasons[choice] if choice < len(reasons) else None
        if ended == "stop" or reason == "stop":
            return "stop"
        unpaid = (shortened and reason == "length") or (ended == "budget" and reason in ("abort", None))
        return "budget" if unpaid or reason == "budget" else "length"

    return tuple(finish(choice, ended) for choice, ended in enumerate(choice_ends))


def left_undone(done: Done | None, choice_ends: Sequence[ChoiceEnd], *, linked: bool) -> Undone | None:
    """Why another replica might do what this one did not; None if it was heard out. `linked`: it can be reached."""
    if done is None:
        return None if linked else "lost"
    if done.reason == "rejected":
        return "refused" if done.refusal is None and done.invalid is None else None
    reasons = done.reasons or (done.reason,) * len(choice_ends)
    cut = any(reason == "abort" and end is None for reason, end in zip(reasons, choice_ends, strict=False))
    return "stopped" if cut else None


def computed_prompt(done: Done | None, began: Began | None, outcome: Outcome | None) -> int:
    """How many tokens of the prompt are billed to a request that ends with this `outcome`, or with what `done` means:
    0 if nothing is."""
    counts: Counts | None = done.counts if done is not None else began.counts if began is not None else None
    ended = outcome or outcome_of(done)
    return 0 if counts is None or ended.status == "failed" else counts.prompt


def replica_lost_error() -> Unavailable:
    """The error for a request whose replica was lost before anything of the answer was handed out."""
    return Unavailable("The model's replica was lost; try again shortly.", retry_after=2.0)


def _failure(reason: str, refusal: Refusal | None) -> GatewayError:
    if refusal is not None:
        return _refused(refusal)
    if reason == "deadline":
        return TimedOut("The request's time is over.")
    if reason == "rejected":
        return Unavailable("The replica did not take the request; try again shortly.")
    return Interrupted("The model's replica failed while it ran the request.")


def _refused(refusal: Refusal) -> GatewayError:
    """The error for a full queue, the client's own or one of all clients, or for a quarantined input."""
    wait = max(1.0, refusal.wait_s)
    if refusal.whose == "input":
        return InvalidRequest(
            f"This very input made the model's replica fail; it is refused for another {wait / 60:.0f} minutes.",
            code="input_quarantined",
        )
    retry = f"try again in about {math.ceil(wait)} s, the wait to be expected now"
    if refusal.whose == "flow":
        return RateLimited(f"Too much of yours is waiting already; {retry}.", retry_after=wait)
    return Unavailable(f"The model is at its capacity; {retry}.", retry_after=wait)


def whose_fault(outcome: Outcome, delivered: int) -> Fault:
    """Whose fault an end was, given how many output tokens had reached the client."""
    if outcome.status == "ok":
        return "none"
    if outcome.status == "cancelled":
        return "client"
    return "ours_after" if delivered else "ours_before"


def finished_request(outcome: Outcome, stream: ReplicaStream, *, delivered: int, sequence: int) -> FinishedRequest:
    """What is recorded of a request that ended in this attempt, with so many output tokens delivered."""
    return FinishedRequest(
        status=outcome.status,
        reason=outcome.reason,
        fault=whose_fault(outcome, delivered),
        delivered=delivered,
        delivery="confirmed",
        source="gateway",
        replica=stream.replica,
        model_digest=stream.model_digest,
        sequence=sequence,
        attempt=stream.attempt,
    )


def observed_counts(began: Counts | None, received: int) -> Counts:
    """The counts of a request whose replica never told the final ones: what `Began` said, and the tokens received."""
    return replace(began or Counts(), output=received, recomputed=0, drafted=0, accepted=0)
