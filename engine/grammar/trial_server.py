"""The trial server: a process that has the model's tokenizer loaded and forks a child for each grammar to try.

It reads trials from standard input and writes results to standard output, each as a length of four bytes and msgpack.
It ends when its input does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.guide import InvalidGrammar
from engine.grammar.trial import TrialVerdict, end_process, ended_by, limit_process, try_grammar

_LENGTH_BYTES = 4
_WALL_S = 15.0
"""Seconds that a trial may take by the clock. The kernel bounds its CPU time."""
_NICE, _NICER = 5, 10
_SOON_S, _LATE_S = 0.1, 1.0
"""Seconds of CPU time after which a trial gets a lower priority, and after which it runs only on an idle processor."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Trial(Struct, frozen=True, array_like=True):
    """A request to try a grammar. Without a text: cancel the trial with this id."""

    id: int
    text: str | None


class TrialResult(Struct, frozen=True, array_like=True):
    """The verdict on the trial with this id."""

    id: int
    verdict: TrialVerdict


@dataclass
class _Child:
    id: int
    pid: int
    pipe: int
    began: float = field(default_factory=time.monotonic)
    priority: int = 0
    output: bytearray = field(default_factory=bytearray)


class TrialServer:
    """Forks, limits and reaps trials in one thread."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._input = bytearray()

    def run(self) -> None:
        """Serve until the input ends; trials under way end with it."""
        try:
            while True:
                for key, _ in self._selector.select(0.02 if self._children else None):
                    descriptor = key.fd
                    if descriptor == 0:
                        if not self._read_trials():
                            return
                    else:
                        self._hear(self._children[descriptor])
                self._watch_time()
        finally:
            for child in self._children.values():
                _kill(child)

    def _read_trials(self) -> bool:
        read = os.read(0, 1 << 20)
        self._input += read
        while len(self._input) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._input[:_LENGTH_BYTES], "big")
            if len(self._input) < end:
                break
            trial = msgspec.msgpack.decode(self._input[_LENGTH_BYTES:end], type=Trial)
            del self._input[:end]
            if trial.text is None:
                self._give_up(trial.id)
            else:
                self._fork(trial.id, trial.text)
        return bool(read)

    def _give_up(self, id: int) -> None:
        """Kill a trial; it is reaped and reported as if it had ended by itself."""
        for child in self._children.values():
            if child.id == id:
                _kill(child)

    def _fork(self, id: int, text: str) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _be_trial(self._compiler, text, writing)
            finally:
                end_process()
        os.close(writing)
        self._children[reading] = _Child(id, pid, reading)
        self._selector.register(reading, selectors.EVENT_READ)

    def _hear(self, child: _Child) -> None:
        if read := os.read(child.pipe, 1 << 20):
            child.output += read
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        del self._children[child.pipe]
        _, status, used = os.wait4(child.pid, 0)
        if time.monotonic() - child.began > _WALL_S:
            verdict = TrialVerdict(f"it was not tried within {_WALL_S:g} s", final=False)
        elif os.WIFSIGNALED(status):
            verdict = ended_by(os.WTERMSIG(status), used.ru_utime + used.ru_stime)
        elif child.output:
            verdict = msgspec.msgpack.decode(child.output, type=TrialVerdict)
        else:
            verdict = TrialVerdict("it could not be tried", final=False)
        _write(1, msgspec.msgpack.encode(TrialResult(child.id, verdict)), framed=True)

    def _watch_time(self) -> None:
        for child in self._children.values():
            if time.monotonic() - child.began > _WALL_S:
                _kill(child)
                continue
            used = _cpu_s(child.pid)
            if (priority := (used > _SOON_S) + (used > _LATE_S)) > child.priority:
                child.priority = priority
                _lower_priority(child.pid, when_idle=priority > 1)


def _be_trial(compiler: GrammarCompiler, text: str, writing: int) -> None:
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what the library prints when it aborts is neither a result nor a log
        os.dup2(silence, descriptor)
    limit_process()
    _write(writing, msgspec.msgpack.encode(try_grammar(compiler, text)))


def _kill(child: _Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)


def _cpu_s(pid: int) -> float:
    """Seconds of CPU time of a child so far."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # The name, in parentheses, may have any characters; user and system time are fields 14 and 15 (proc_pid_stat(5)).
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS


def _lower_priority(pid: int, *, when_idle: bool) -> None:
    with contextlib.suppress(OSError):
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            if when_idle:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            else:
                os.setpriority(os.PRIO_PROCESS, thread, _NICER)


def _write(descriptor: int, data: bytes, *, framed: bool = False) -> None:
    left = memoryview(len(data).to_bytes(_LENGTH_BYTES, "big") + data if framed else data)
    while left:
        left = left[os.write(descriptor, left) :]


def main() -> None:
    """`python -m engine.grammar.trial_server FOLDER VOCABULARY END…`"""
    folder, vocabulary, *ends = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the replica, which then closes our input
    os.nice(_NICE)
    compiler = GrammarCompiler(Path(folder), int(vocabulary), [int(end) for end in ends])
    with contextlib.suppress(InvalidGrammar):  # every trial reports it
        compiler.vocabulary_of_model()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):
        TrialServer(compiler).run()


if __name__ == "__main__":
    main()
