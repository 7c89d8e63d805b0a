"""Tries one grammar in a process of its own: compiles it, and samples a few outputs under it.

A trial has a part of what a replica has (half the stack, 2 s of CPU time, 256 MiB), so that a grammar that passes does
no harm there (E6). If it needs more, the kernel ends the process, which is a verdict too.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import llguidance
import numpy as np
from msgspec import Struct

from engine.grammar.closing_search import MOST_TOKENS, run
from engine.grammar.compiler import GrammarCompiler, first_line
from engine.grammar.guide import InvalidGrammar
from engine.grammar.llguidance_guide import (
    FIRST_S,
    TOKEN_S,
    TOO_SLOW,
    LlguidanceGuide,
    LlguidancePosition,
    SharedGrammarState,
)

STACK_BYTES = 8 << 20
"""The stack of a replica's threads that compile or use grammars. A trial has half of it."""
CPU_S = 2
_KILLED = 9
MEMORY_BYTES = 256 << 20
_LEAST_BYTES, _FORK_BYTES = 1 << 20, 8 << 20
"""The least memory that a grammar is taken to need; memory that a fork touches in any case."""
_SAMPLE_TOKENS = 64
_SAMPLES = 4
_QUICK_S = 0.005
"""Seconds of CPU time of samples that are enough for a quick grammar."""
_SLOW_STEP_S = 0.05
_SEARCH_S = 0.1
"""Seconds of CPU time for the closing search from the beginning, and for those of one sample."""


class TrialVerdict(Struct, frozen=True, array_like=True):
    """`problem`: why the grammar is refused, empty if it is not. `prepared`: the library's form of it. `ending`: tokens
    that complete an empty output. `size`: bytes of memory. `final`: another trial would have the same result."""

    problem: str = ""
    prepared: str = ""
    ending: list[int] | None = None
    size: int = 0
    cpu_s: float = 0.0
    final: bool = True


def limit_process() -> None:
    """Limit the CPU time and memory of this process from now on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    data = _status("VmData") + MEMORY_BYTES + STACK_BYTES // 2
    resource.setrlimit(resource.RLIMIT_DATA, (data, data))


def try_grammar(compiler: GrammarCompiler, text: str) -> TrialVerdict:
    """The verdict on a grammar, from a thread with half the stack. A grammar beyond the limits ends the process."""
    verdicts: list[TrialVerdict] = []
    threading.stack_size(STACK_BYTES // 2)
    thread = threading.Thread(target=lambda: verdicts.append(_judge(compiler, text)))
    thread.start()
    thread.join()
    return verdicts[0] if verdicts else TrialVerdict("it could not be tried")


def ended_by(signal: int, cpu_s: float) -> TrialVerdict:
    """The verdict on a grammar whose trial was ended by this signal after so many seconds of CPU time."""
    if signal == _KILLED and cpu_s < CPU_S:  # not by our limit, but because the machine is short of memory, say
        return TrialVerdict("its trial was ended from outside", final=False)
    names = {
        6: f"it takes more than {MEMORY_BYTES >> 20} MiB, or is nested too deep",
        _KILLED: f"it takes more than {CPU_S} s",
        11: "it is nested too deep",
        24: f"it takes more than {CPU_S} s",
    }
    return TrialVerdict(names.get(signal, "it could not be compiled"))


def _judge(compiler: GrammarCompiler, text: str) -> TrialVerdict:
    before = _status("VmRSS")
    try:
        prepared = compiler.prepared(text)
        matcher = compiler.matcher(prepared)
        _, closer = compiler.vocabulary_of_model()
        ending = run(closer.search(LlguidancePosition(matcher), MOST_TOKENS), _SEARCH_S)
        shared = SharedGrammarState(closer, compiler.ends, ending, -(-compiler.vocabulary // 32))
        problem = _draw_samples(matcher, shared)
    except InvalidGrammar as error:
        return TrialVerdict(str(error))
    except MemoryError:
        return TrialVerdict(f"it takes more than {MEMORY_BYTES >> 20} MiB")
    if problem:
        return TrialVerdict(problem)
    size = max(_LEAST_BYTES, _status("VmRSS") - before - _FORK_BYTES)
    del matcher, shared  # freeing them recurses too, so it is part of the trial
    return TrialVerdict("", prepared, ending, size, time.process_time())


def _draw_samples(matcher: llguidance.LLMatcher, shared: SharedGrammarState) -> str:
    """Sample outputs uniformly from the allowed tokens; returns what is wrong with the grammar, "" if nothing is."""
    began, problems = time.thread_time(), []
    for sample in range(_SAMPLES):
        guide_matcher = matcher.deep_copy()
        problem, quick = _draw(guide_matcher, LlguidanceGuide(guide_matcher, shared), random.Random(sample))  # noqa: S311
        if problem == TOO_SLOW:
            return problem
        problems.append(problem)
        if quick and not problem and time.thread_time() - began > _QUICK_S:
            break
    # The model may take another way than a sample that met a limit; only if all did, is the grammar refused.
    return problems[0] if all(problems) else ""


def _draw(matcher: llguidance.LLMatcher, guide: LlguidanceGuide, chance: random.Random) -> tuple[str, bool]:
    masks, slowest, searching = 0.0, 0.0, _SEARCH_S
    for taken in range(_SAMPLE_TOKENS):
        if guide.ended:
            break
        step = time.thread_time()
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        took = time.thread_time() - step
        masks, slowest = masks + took, max(slowest, took)
        if slowest > _SLOW_STEP_S or masks > FIRST_S + TOKEN_S * taken:
            return TOO_SLOW, False
        allowed = np.unpackbits(bits, bitorder="little").nonzero()[0]
        if matcher.is_error() or not len(allowed):
            return first_line(matcher.get_error()) or "no text fulfils it", True
        drawn = int(chance.choice(allowed))
        step = time.thread_time()
        token = guide.choose_token_within(drawn, _SAMPLE_TOKENS - taken, _time_until(step + searching))
        searching -= time.thread_time() - step
        guide.accept_token(drawn if token is None else token)
        if guide.failure is not None:
            return guide.failure, True
    return "", slowest < _SLOW_STEP_S / 10


def _time_until(end: float) -> Callable[[], bool]:
    return lambda: time.thread_time() < end


def _status(field: str) -> int:
    """Bytes in a field of this process's /proc status."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def end_process() -> None:
    """End this process without running the exit handlers that it inherited."""
    os._exit(0)
