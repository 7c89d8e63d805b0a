"""Worker processes for a benchmark, as a gateway has them: each gets requests from the benchmark and answers them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from audit_log.actors import Actor

BENCHMARK = Actor("command", "benchmark", "benchmark")
"""Who makes the changes that prepare a measurement; the audit log wants somebody."""


class Processes:
    """So many processes that run `target` with a pipe, in which they receive what they are asked and send answers.
    Once made, all have started: how long Python takes to import is not measured. They end with us."""

    def __init__(self, count: int, target: Callable[[Connection], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            context.Process(target=_run, args=(target, theirs), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)
        for pipe in self._pipes:
            pipe.recv()

    def ask(self, questions: Sequence[Any]) -> list[Any]:
        """Ask each process its own question, all at once; return the answers. Raises EOFError if one has died."""
        for pipe, question in zip(self._pipes, questions, strict=True):
            pipe.send(question)
        return [pipe.recv() for pipe in self._pipes]


def _run(target: Callable[[Connection], None], pipe: Connection) -> None:
    with contextlib.suppress(EOFError):  # who asked us is gone
        pipe.send(None)
        target(pipe)


def server_cpu_s(parent: int) -> float:
    """CPU seconds of a process and its children, those that ended included; 0 for none."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat") if parent else ():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if stat.parent.name == str(parent):
            total += sum(map(int, fields[11:15]))
        elif fields[1] == str(parent):
            total += sum(map(int, fields[11:13]))
    return total / os.sysconf("SC_CLK_TCK")
