"""The process that tries grammars: it has the model's tokenizer ready, and forks a child for each trial.

It reads trials from its standard input and writes verdicts to its standard output, each as a length and msgpack. It
ends when its input does.
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
from engine.grammar.trial import Verdict, end_process, ended_by, limit_process, try_grammar

_LENGTH_BYTES = 4
_WALL_S = 15.0
"""How long a trial may take by the clock; its CPU time is bounded by the kernel."""
_NICE, _NICER = 5, 10
_SOON_S, _LATE_S = 0.1, 1.0
"""After so much CPU time a trial goes on with a lower priority, and when the processor has nothing else to do."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Trial(Struct, frozen=True, array_like=True):
    """A grammar to be tried; without its text: nobody waits for the trial with this id any more."""

    id: int
    text: str | None


class TrialResult(Struct, frozen=True, array_like=True):
    """The verdict on the trial with this id."""

    id: int
    verdict: Verdict


@dataclass
class _Child:
    id: int
    pid: int
    pipe: int
    began: float = field(default_factory=time.monotonic)
    priority: int = 0
    said: bytearray = field(default_factory=bytearray)


class TrialServer:
    """Forks, bounds and reaps trials. One thread."""

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
        """End a trial; it is reaped, and its verdict told, as if it had ended by itself."""
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
            child.said += read
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        del self._children[child.pipe]
        _, status, used = os.wait4(child.pid, 0)
        if time.monotonic() - child.began > _WALL_S:
            verdict = Verdict(f"it was not tried within {_WALL_S:g} s", final=False)
        elif os.WIFSIGNALED(status):
            verdict = ended_by(os.WTERMSIG(status), used.ru_utime + used.ru_stime)
        elif child.said:
            verdict = msgspec.msgpack.decode(child.said, type=Verdict)
        else:
            verdict = Verdict("it could not be tried", final=False)
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
    for descriptor in (0, 1, 2):  # what the library writes when it gives up is no verdict, nor a log
        os.dup2(silence, descriptor)
    limit_process()
    _write(writing, msgspec.msgpack.encode(try_grammar(compiler, text)))


def _kill(child: _Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)


def _cpu_s(pid: int) -> float:
    """CPU time in seconds that a process of ours used so far."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # Its name, in parentheses, may have any characters; user and system time are fields 14 and 15 of them all.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's interrupt is for the replica, which closes our input
    os.nice(_NICE)
    compiler = GrammarCompiler(Path(folder), int(vocabulary), [int(end) for end in ends])
    with contextlib.suppress(InvalidGrammar):  # every trial says so
        compiler.vocabulary_of_model()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):
        TrialServer(compiler).run()


if __name__ == "__main__":
    main()
