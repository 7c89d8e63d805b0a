"""The quarantine: a request that makes the engine fail, fails alone, and its input is refused afterwards (E3, E6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from engine.core.quarantine import Quarantine
from engine.grammar.guide import Guide
from engine.sampling.request_state import SamplingState
from engine.scheduling.step_work import DeviceFailed, Work, WorkOutcome
from gateway.errors import InvalidRequest
from gateway.generation.outcome import outcome_of
from protocol.requests import Counts, Done, Refusal, Segment
from tests.engine.conftest import VOCABULARY, Bench, generate

Benches = Callable[..., Bench]
POISON = 77
HARMLESS = [(5 * i) % 70 for i in range(90)]
HARMFUL = [*HARMLESS[:70], POISON, 3]


def poison(bench: Bench, error: Callable[[], Exception]) -> list[int]:
    """Make the runner fail at any work that has POISON in its tokens; returns how many works each call had."""
    calls: list[int] = []
    run = bench.engine.executor.runner.run

    def failing(works: Sequence[Work]) -> list[WorkOutcome]:
        calls.append(len(works))
        if any(POISON in work.request.tokens[work.start : work.start + work.count] for work in works):
            raise error()
        return run(works)

    bench.engine.executor.runner.run = failing  # type: ignore[method-assign]  # the fault that is tested
    return calls


def ended(bench: Bench, id: str) -> Done:
    done = bench.runs[id].done
    assert done is not None
    return done


def test_what_fails_alone_is_refused_when_it_comes_again(bench: Bench):
    expected = bench.one(generate("before", HARMLESS, 12)).tokens
    poison(bench, lambda: RuntimeError("a kernel choked"))
    bench.add(generate("neighbour", HARMLESS, 12))
    bench.add(generate("harmful", HARMFUL, 5))
    bench.finish()
    assert ended(bench, "harmful").reason == "error"
    assert ended(bench, "harmful").error == "RuntimeError: a kernel choked"
    assert bench.runs["neighbour"].tokens == expected
    again = bench.one(generate("again", HARMFUL, 5)).done
    assert again is not None
    assert again.reason == "rejected"
    assert again.refusal is not None
    assert again.refusal.whose == "input"
    assert 3500 < again.refusal.wait_s <= 3600
    assert bench.engine.pool.referenced_blocks == 0


def test_it_says_nothing_to_other_scopes_or_about_other_inputs(bench: Bench):
    calls = poison(bench, lambda: RuntimeError("a kernel choked"))
    bench.one(generate("harmful", HARMFUL, 5))
    calls.clear()
    bench.one(generate("longer", [*HARMFUL, 4], 5))
    bench.one(generate("shorter", HARMFUL[:70], 5))
    bench.one(generate("elsewhere", HARMFUL, 5, segments=(Segment(len(HARMFUL), "other"),)))
    assert ended(bench, "longer").reason == "error", "another input, whose harm is its own"
    assert ended(bench, "shorter").reason == "length"
    assert ended(bench, "elsewhere").reason == "error", "not refused for what another scope sent"
    assert calls


def test_an_input_that_may_leave_nothing_is_known_again_whatever_its_choices(bench: Bench):
    """Several choices without a store have keys that nobody else can make: what did harm is known by its own."""
    poison(bench, lambda: RuntimeError("a kernel choked"))
    bench.one(generate("harmful", HARMFUL, 5, choices=2, store="none"))
    assert ended(bench, "harmful").reason == "error"
    for choices in (2, 1):
        again = bench.one(generate(f"again {choices}", HARMFUL, 5, choices=choices, store="none")).done
        assert again is not None
        assert again.refusal is not None
        assert again.refusal.whose == "input"


def test_what_was_told_of_a_prompt_in_a_step_that_failed_is_not_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """A neighbour's log probabilities do not fit into memory, after ours were computed."""
    told = {"logprobs": 1, "prompt_logprobs": 1}
    expected = bench.one(generate("before", HARMLESS, 3, **told)).prompt_logprobs
    assert len(expected) == len(HARMLESS) - 1
    score, failed = bench.engine.executor.runner._score, []

    def failing(work: Work, *given: object) -> object:
        if work.request.id == "neighbour" and not failed:
            failed.append(work)
            raise MemoryError
        return score(work, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.engine.executor.runner, "_score", failing)
    bench.add(generate("ours", HARMLESS, 3, **told))
    bench.add(generate("neighbour", [*HARMLESS, 1], 3, **told))
    bench.finish()
    assert failed
    assert bench.runs["ours"].prompt_logprobs == expected
    assert ended(bench, "neighbour").reason == "length"


def test_what_raises_when_its_token_is_taken_fails_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """In a grammar, say, after the step: there is no step to run again without it."""
    expected = bench.one(generate("before", HARMLESS, 6, logit_bias={1: 0.5})).tokens
    take = SamplingState.accept_token

    def failing(row: SamplingState, token: int) -> None:
        if row.drawn == 2 and row.sampling.min_tokens:
            raise RecursionError("too deep")
        take(row, token)

    monkeypatch.setattr(SamplingState, "accept_token", failing)
    bench.add(generate("neighbour", HARMLESS, 6, logit_bias={1: 0.5}))
    bench.add(generate("harmful", HARMFUL, 6, min_tokens=4, choices=2))
    bench.finish()
    assert bench.runs["neighbour"].tokens == expected
    done = ended(bench, "harmful")
    assert (done.reason, done.error) == ("error", "RecursionError: too deep")
    assert len(bench.runs["harmful"].tokens) == 3
    again = bench.one(generate("again", HARMFUL, 5)).done
    assert again is not None
    assert again.refusal is not None
    assert bench.engine.pool.referenced_blocks == 0


def test_what_raises_before_it_is_queued_is_refused_alone(bench: Bench):
    class Broken:
        def compiled(self, text: str) -> Broken:
            return self

        def guide(self) -> Guide:
            raise RuntimeError("a library's own")

    expected = bench.one(generate("before", HARMLESS, 6)).tokens
    bench.engine.input_processor.grammars = Broken()
    neighbour = bench.add(generate("neighbour", HARMLESS, 6))
    bench.step()
    bench.one(generate("harmful", HARMFUL, 6, grammar="{}"))
    assert (ended(bench, "harmful").reason, ended(bench, "harmful").counts) == ("rejected", Counts())
    assert neighbour.tokens == expected


def test_a_failure_that_does_not_come_again_harms_nobody(bench: Bench):
    expected = bench.one(generate("before", HARMLESS, 6)).tokens
    run, failed = bench.engine.executor.runner.run, []

    def once(works: Sequence[Work]) -> list[WorkOutcome]:
        if not failed:
            failed.append(True)
            raise RuntimeError("a cosmic ray")
        return run(works)

    bench.engine.executor.runner.run = once  # type: ignore[method-assign]  # the fault that is tested
    assert bench.one(generate("hit", HARMLESS, 6)).tokens == expected
    assert len(bench.engine.quarantine) == 0


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["allocator", "cublas", "triton", "pinned", "cpu"],
)
def test_want_of_memory_is_nobodys_fault(bench: Bench, error: Exception):
    poison(bench, lambda: error)
    bench.one(generate("large", HARMFUL, 5))
    assert ended(bench, "large").reason == "error"
    assert len(bench.engine.quarantine) == 0


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_a_device_that_failed_ends_the_engine_and_quarantines_nobody(bench: Bench, together: bool):
    """Also where the device fails only when the work runs alone. A second time its input is suspected."""
    calls = poison(bench, lambda: RuntimeError("CUDA error: an illegal memory access was encountered"))

    def failing() -> None:
        if together or len(calls) == 2:
            raise DeviceFailed("an illegal memory access")

    bench.engine.executor.runner.check_device = failing  # type: ignore[method-assign]  # the fault that is tested
    harmful = generate("harmful", HARMFUL, 5)
    bench.add(harmful)
    with pytest.raises(DeviceFailed, match="an illegal memory access"):
        bench.finish()
    assert len(calls) == (1 if together else 2)
    assert bench.runs["harmful"].done is None, "the gateway sends it again"
    (key,) = [request.input_key() for request in bench.engine.scheduler.running]
    assert bench.engine.quarantine.refused_seconds(key) is None
    bench.engine.quarantine.record_device_failure([key])
    assert bench.engine.quarantine.refused_seconds(key) == 3600


def test_a_cuda_error_that_stays_is_the_devices(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """CUDA tells a fault of a kernel in every call that follows it, so in one that only waits."""

    def failing(device: torch.device) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA")

    runner = bench.engine.executor.runner
    runner.check_device()
    runner.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    runner.check_device()
    monkeypatch.setattr(torch.cuda, "synchronize", failing)
    with pytest.raises(DeviceFailed, match=r"^AcceleratorError: CUDA error: device-side assert triggered$"):
        runner.check_device()


@pytest.mark.parametrize("told", [None, 3])
def test_blocks_that_a_request_without_a_finite_answer_read_are_read_no_more(bench: Bench, told: int | None):
    prompt = [(3 * i) % VOCABULARY for i in range(200)]
    bench.one(generate("writer", prompt, 2))
    bench.engine.executor.runner.memories[0].data[:] = float("nan")
    bench.one(generate("reader", prompt, 2, temperature=0.7, logprobs=told))
    assert ended(bench, "reader").reason == "error"
    assert "NotFinite" in (ended(bench, "reader").error or "")
    assert bench.engine.pool.cached_blocks == 0


# ------------------------------------------------------------ entries


def test_in_company_it_takes_two_failures(tmp_path: Path):
    now = 1000.0
    quarantine = Quarantine(tmp_path / "quarantine", 60.0, clock=lambda: now)
    quarantine.record_failure([b"a", b"b"])
    assert quarantine.refused_seconds(b"a") is None
    now += 30
    quarantine.record_failure([b"b", b"c"])
    assert quarantine.refused_seconds(b"b") == 60
    assert quarantine.refused_seconds(b"c") is None
    kept = Quarantine(tmp_path / "quarantine", 60.0, clock=lambda: now)
    assert kept.refused_seconds(b"b") == 60
    now += 61
    assert kept.refused_seconds(b"b") is None
    kept.record_failure([b"a", b"d"])
    assert kept.refused_seconds(b"a") is None, "the first suspicion was forgotten"


def test_a_file_that_cannot_be_read_is_an_empty_one(tmp_path: Path):
    path = tmp_path / "quarantine"
    path.write_bytes(b"\xff\xff nonsense")
    quarantine = Quarantine(path)
    assert len(quarantine) == 0
    quarantine.record_failure([b"a"])
    assert Quarantine(path).refused_seconds(b"a") is not None


@pytest.mark.slow
def test_the_quarantine_is_bounded():
    quarantine = Quarantine()
    for index in range(5000):
        quarantine.record_failure([index.to_bytes(4, "big")])
    assert len(quarantine) == 4096
    assert quarantine.refused_seconds((4999).to_bytes(4, "big")) is not None


def test_a_gateway_tells_the_client_that_its_input_does_harm():
    done = Done("a", 1, "rejected", Counts(), 0, refusal=Refusal("input", 1800.0))
    failure = outcome_of(done).failure
    assert isinstance(failure, InvalidRequest)
    assert failure.code == "input_quarantined"
    assert "30 minutes" in failure.message
