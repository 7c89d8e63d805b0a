"""What a replica's last word means: a table of cases."""

from __future__ import annotations

import pytest
from msgspec import structs

from gateway.errors import Interrupted, InvalidRequest, RateLimited, TimedOut, Unavailable
from gateway.generation.outcome import finish_reasons, invalid_grammar, observed_counts, outcome_of, whose_fault
from gateway.generation.request_state import Outcome, failed
from gateway.generation_request import Grammar
from gateway.http.responses import error_headers
from protocol.requests import Counts, Done, Refusal

COUNTS = Counts(prompt=1000, computed=808, read_hbm=192, output=50)


def _done(reason: str) -> Done:
    return Done("x", 1, reason, COUNTS, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["stop", "length", "budget"])
def test_a_good_end(reason: str) -> None:
    assert outcome_of(_done(reason)) == Outcome("ok", reason)


@pytest.mark.parametrize(
    ("reason", "failure"),
    [("deadline", TimedOut), ("rejected", Unavailable), ("abort", Interrupted), ("error", Interrupted),
     ("crash", Interrupted)],
)  # fmt: skip
def test_a_bad_end(reason: str, failure: type[Exception]) -> None:
    outcome = outcome_of(_done(reason))
    assert (outcome.status, outcome.reason, type(outcome.failure)) == ("failed", reason, failure)


@pytest.mark.parametrize(
    ("problem", "path", "said"),
    [
        ("schema 1: items.const 1e400 is not supported: let it be text", "$.tools[3]", "items.const 1e400 is not"),
        ("Parser Error: Current row has 2000 items", "$.tools", "an answer cannot be held to these schemas"),
    ],
)
def test_of_a_refused_schema_the_tool_and_the_keyword_are_named(problem: str, path: str, said: str) -> None:
    done = structs.replace(_done("rejected"), invalid="grammar", error=f"grammar: {problem}")
    grammar = Grammar("{}", "$.tools", calls=True, tool_paths=("$.tools[0]", "$.tools[3]"))
    outcome = invalid_grammar(done, grammar)
    assert outcome is not None
    assert isinstance(outcome.failure, InvalidRequest)
    assert outcome.failure.path == path
    assert str(outcome.failure).startswith(f"{path}: {said}")


def test_a_replica_that_never_said_how_it_ended() -> None:
    outcome = outcome_of(None)
    assert (outcome.status, outcome.reason, type(outcome.failure)) == ("failed", "lost", Interrupted)


def test_one_choice_without_money_makes_the_reason_budget() -> None:
    for reason in ("stop", "length", "abort"):
        assert outcome_of(_done(reason), ("stop", "budget")) == Outcome("ok", "budget")
    assert outcome_of(_done("crash"), ("stop", "budget")).status == "failed"


def test_how_each_choice_ended() -> None:
    assert finish_reasons(_done("length"), [None]) == ("length",)
    assert finish_reasons(_done("budget"), [None]) == ("budget",)
    assert finish_reasons(_done("length"), [None], shortened=True) == ("budget",)
    assert finish_reasons(_done("abort"), ["budget"]) == ("budget",)
    assert finish_reasons(_done("stop"), ["budget"], shortened=True) == ("stop",)
    assert finish_reasons(_done("abort"), ["stop"]) == ("stop",)
    three = structs.replace(_done("length"), reasons=("stop", "abort", "length"))
    assert finish_reasons(three, [None, "stop", None]) == ("stop", "stop", "length")


@pytest.mark.parametrize(
    ("whose", "status"), [("flow", 429), ("lane", 503), ("replica", 503)]
)  # fmt: skip
def test_a_full_queue_says_when_to_come_again(whose: str, status: int) -> None:
    done = Done("x", 1, "rejected", Counts(), 0, refusal=Refusal(whose, 12.3))  # type: ignore[arg-type]
    failure = outcome_of(done).failure
    assert isinstance(failure, RateLimited if status == 429 else Unavailable)
    headers = error_headers(failure)
    assert (failure.status, headers["retry-after"], headers["x-should-retry"]) == (status, "13", "true")
    assert "in about 13 s" in failure.message


def test_whose_fault_an_end_was() -> None:
    assert whose_fault(Outcome("ok", "stop"), 1) == "none"
    assert whose_fault(Outcome("cancelled", "abort"), 1) == "client"
    assert whose_fault(failed(Interrupted("x")), 0) == "ours_before"
    assert whose_fault(failed(Interrupted("x")), 1) == "ours_after"


def test_counts_that_the_gateway_observed_itself() -> None:
    assert observed_counts(None, 3) == Counts(output=3)
    assert observed_counts(COUNTS, 3) == Counts(prompt=1000, computed=808, read_hbm=192, output=3)
