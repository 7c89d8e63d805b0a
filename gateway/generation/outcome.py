"""How a request ended: what the client is told, whose fault it was, what is recorded. Decided here, in one place."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from msgspec import Struct

from billing.usage import Status
from gateway.errors import GatewayError, Interrupted, InvalidRequest, RateLimited, TimedOut, Unavailable
from gateway.generation.delivery import FinishReason
from gateway.metering.billable_usage import Fault
from protocol.requests import Counts, Done, Refusal


class Outcome(Struct, frozen=True):
    """`failure` is what the client is told, None after a good end or when nobody is there to be told."""

    status: Status
    reason: str
    failure: GatewayError | None = None


def decide_outcome(
    done: Done | None, *, stopped: bool, left: bool, failure: GatewayError | None, ends: Sequence[FinishReason] = ()
) -> Outcome:
    """The ending that `done` (None: the replica never said) means.

    `stopped`: a stop string completed, and the abort was ours. `left`: the client did. `failure`: what we have already
    found to be wrong: the link lost, the time over, the gateway stopping. `ends`: how each choice ended, if well.
    """
    reason = "lost" if done is None else done.reason
    if failure is not None:
        return Outcome("failed", reason, failure=failure)
    if left:
        return Outcome("cancelled", "stop" if stopped else reason)
    if "budget" in ends and reason in ("stop", "length", "budget", "abort"):
        return Outcome("ok", "budget")
    if stopped or reason == "stop":
        return Outcome("ok", "stop")
    if reason in ("length", "budget"):
        return Outcome("ok", reason)
    return Outcome("failed", reason, failure=_failure(reason, done.refusal if done is not None else None))


def finish_reasons(
    done: Done | None, stopped: Sequence[bool], *, shortened: bool = False, cut: Collection[int] = ()
) -> tuple[FinishReason, ...]:
    """How each choice ended that came to a good end.

    `stopped`: by a stop string. `shortened`: the length was what could be paid for. `cut`: the choices that we aborted
    because no more could be paid for.
    """
    reasons = (done.reasons or (done.reason,)) if done is not None else ()

    def finish(choice: int, by_string: bool) -> FinishReason:
        reason = reasons[choice] if choice < len(reasons) else "stop"
        if by_string or reason == "stop":
            return "stop"
        unpaid = (shortened and reason == "length") or (choice in cut and reason == "abort")
        return "budget" if unpaid or reason == "budget" else "length"

    return tuple(finish(choice, by_string) for choice, by_string in enumerate(stopped))


def _failure(reason: str, refusal: Refusal | None) -> GatewayError:
    if refusal is not None:
        return _refused(refusal)
    if reason == "deadline":
        return TimedOut("The request's time is over.")
    if reason == "rejected":
        return Unavailable("The replica did not take the request; try again shortly.")
    return Interrupted("The model's replica failed while it ran the request.")


def _refused(refusal: Refusal) -> GatewayError:
    """A full queue: the client's own is its limit, any other our lack of room. An input that does harm: as it is."""
    wait = max(1.0, refusal.wait_s)
    if refusal.whose == "input":
        return InvalidRequest(
            f"This very input made the model's replica fail; it is refused for another {wait / 60:.0f} minutes.",
            code="input_quarantined",
        )
    if refusal.whose == "flow":
        return RateLimited(f"Too much of yours is waiting already; {_again(wait)}.", retry_after=wait)
    return Unavailable(f"The model is at its capacity; {_again(wait)}.", retry_after=wait)


def _again(wait: float) -> str:
    """When to come again: the replica's estimate of how long the request would have waited."""
    return f"try again in about {math.ceil(wait)} s, the wait to be expected now"


def whose_fault(ending: Outcome, delivered: int) -> Fault:
    """Whose fault an ending was, given how many output tokens had reached the client."""
    if ending.status == "ok":
        return "none"
    if ending.status == "cancelled":
        return "client"
    return "ours_after" if delivered else "ours_before"


def observed_counts(began: Counts | None, received: int) -> Counts:
    """Counts made of what the gateway itself saw, for a replica that never told the final ones."""
    if began is None:
        return Counts(output=received)
    return Counts(
        prompt=began.prompt,
        computed=began.computed,
        read_hbm=began.read_hbm,
        read_dram=began.read_dram,
        read_nvme=began.read_nvme,
        output=received,
    )
