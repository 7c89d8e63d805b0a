"""Tries one grammar in a process of its own: it is compiled and a few sample outputs are drawn under it.

What a grammar may take is a part of what a replica has, so that one which passes does no harm there: half the stack,
2 s of CPU time, 256 MiB. Beyond these the process is ended by the kernel, which is an answer, too.
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
"""The stack of a thread in which the replica compiles or uses grammars; a trial has half of it."""
CPU_S = 2
_KILLED = 9
MEMORY_BYTES = 256 << 20
_LEAST_BYTES, _FORK_BYTES = 1 << 20, 8 << 20
"""What a grammar takes at least, and what a process touches when it is forked, whatever it does."""
_SAMPLE_TOKENS = 64
_SAMPLES = 4
_QUICK_S = 0.005
"""Sample outputs are drawn until this is used up: so little time says enough of a grammar that is quick."""
_SLOW_STEP_S = 0.05
_SEARCH_S = 0.1
"""CPU time for which an end is searched for from the beginning, and while a sample is drawn."""


class Verdict(Struct, frozen=True, array_like=True):
    """`problem`: why the grammar is refused, empty if it is not. `prepared`: the library's form of it. `ending`: tokens
    to an end from its beginning. `size`: bytes that it took. `final`: another trial would say the same."""

    problem: str = ""
    prepared: str = ""
    ending: list[int] | None = None
    size: int = 0
    cpu_s: float = 0.0
    final: bool = True


def limit_process() -> None:
    """Bound what this process may take from now on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    data = _status("VmData") + MEMORY_BYTES + STACK_BYTES // 2
    resource.setrlimit(resource.RLIMIT_DATA, (data, data))


def try_grammar(compiler: GrammarCompiler, text: str) -> Verdict:
    """The verdict on a grammar, from a thread with half the stack. A grammar that takes too much ends the process."""
    verdicts: list[Verdict] = []
    threading.stack_size(STACK_BYTES // 2)
    thread = threading.Thread(target=lambda: verdicts.append(_judge(compiler, text)))
    thread.start()
    thread.join()
    return verdicts[0] if verdicts else Verdict("it could not be tried")


def ended_by(signal: int, cpu_s: float) -> Verdict:
    """The verdict on a grammar whose trial was ended by this signal after so many seconds of CPU time."""
    if signal == _KILLED and cpu_s < CPU_S:  # not by our limit: the machine was short of memory, say
        return Verdict("its trial was ended from outside", final=False)
    names = {
        6: f"it takes more than {MEMORY_BYTES >> 20} MiB, or is nested too deep",
        _KILLED: f"it takes more than {CPU_S} s",
        11: "it is nested too deep",
        24: f"it takes more than {CPU_S} s",
    }
    return Verdict(names.get(signal, "it could not be compiled"))


def _judge(compiler: GrammarCompiler, text: str) -> Verdict:
    before = _status("VmRSS")
    try:
        prepared = compiler.prepared(text)
        matcher = compiler.matcher(prepared)
        _, closer = compiler.vocabulary_of_model()
        ending = run(closer.search(LlguidancePosition(matcher), MOST_TOKENS), _SEARCH_S)
        shared = SharedGrammarState(closer, compiler.ends, ending, -(-compiler.vocabulary // 32))
        problem = _draw_samples(matcher, shared)
    except InvalidGrammar as error:
        return Verdict(str(error))
    except MemoryError:
        return Verdict(f"it takes more than {MEMORY_BYTES >> 20} MiB")
    if problem:
        return Verdict(problem)
    size = max(_LEAST_BYTES, _status("VmRSS") - before - _FORK_BYTES)
    del matcher, shared  # letting go recurses, too
    return Verdict("", prepared, ending, size, time.process_time())


def _draw_samples(matcher: llguidance.LLMatcher, shared: SharedGrammarState) -> str:
    """Draw outputs evenly from what is allowed; what is wrong with the grammar then, empty if nothing."""
    began, problems = time.thread_time(), []
    for sample in range(_SAMPLES):
        guide_matcher = matcher.deep_copy()
        problem, quick = _draw(guide_matcher, LlguidanceGuide(guide_matcher, shared), random.Random(sample))  # noqa: S311
        if problem == TOO_SLOW:
            return problem
        problems.append(problem)
        if quick and not problem and time.thread_time() - began > _QUICK_S:
            break
    # The model may go another way than samples that met a limit: only where all of them did nothing else is left.
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
        token = guide.settle_within(drawn, _SAMPLE_TOKENS - taken, _time_until(step + searching))
        searching -= time.thread_time() - step
        guide.take(drawn if token is None else token)
        if guide.failure is not None:
            return guide.failure, True
    return "", slowest < _SLOW_STEP_S / 10


def _time_until(end: float) -> Callable[[], bool]:
    return lambda: time.thread_time() < end


def _status(field: str) -> int:
    """Bytes that the kernel says of this process."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def end_process() -> None:
    """End this process without running what its parent left to be run."""
    os._exit(0)
