"""The command: worlds by their seeds, one seed again, or mutants that the checkers have to find."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from simulation.runs import Result, Worlds


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m simulation",
        description="Run gateways, replicas and clients in one process under seeds, with faults, and check what must "
        "hold. A seed that fails is printed; `--seed S` runs it again, to the same trace.",
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from --first on (default %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default %(default)s)")
    parser.add_argument("--seed", type=int, help="run this one alone, and say what happened in it")
    parser.add_argument("--minutes", type=float, help="begin no seed after so many minutes")
    parser.add_argument("--jobs", type=int, default=1, help="how many worlds at once (default %(default)s)")
    parser.add_argument("--traces", action="store_true", help="print each seed's trace")
    parser.add_argument("--trace-to", type=Path, help="with --seed: a file for every step")
    parser.add_argument("--mutants", action="store_true", help="plant each mutant, and say which are found")
    parser.add_argument("--mutant", help="plant this one alone")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    """Run the command. Returns 1 if something did not hold, or a mutant was not found."""
    arguments = _arguments(given)
    worlds = Worlds()
    try:
        if arguments.mutants or arguments.mutant:
            from simulation.mutants import hunt

            return hunt(worlds, arguments)
        if arguments.seed is not None:
            return _one(worlds, arguments.seed, arguments.trace_to)
        return _many(worlds, arguments)
    finally:
        worlds.close()


def _one(worlds: Worlds, seed: int, trace_to: Path | None) -> int:
    (result,) = worlds.run([seed], loud=True, trace_to=trace_to)
    for line in result.told:
        print(line)
    _print_failure(result)
    print(f"seed {seed}: trace {result.trace}, {result.steps} steps, {result.virtual_s:.1f} s in {result.real_s:.1f} s")
    return int(bool(result.violations))


def _many(worlds: Worlds, arguments: argparse.Namespace) -> int:
    began, failed, results = time.perf_counter(), 0, 0
    virtual_s, requests, traces = 0.0, 0, hashlib.blake2b(digest_size=16)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    for result in worlds.run(_in_time(seeds, arguments.minutes), arguments.jobs):
        results += 1
        virtual_s += result.virtual_s
        requests += result.requests
        traces.update(result.trace.encode())
        if arguments.traces:
            print(f"seed {result.seed}: trace {result.trace}")
        if result.violations:
            failed += 1
            _print_failure(result)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, real_s = used.ru_utime + used.ru_stime, time.perf_counter() - began
    print(
        f"{results} seeds from {arguments.first}: {failed} failed; {requests} requests, {virtual_s / 3600:.2f} "
        f"simulated hours, {real_s:.0f} s, {cpu_s:.0f} s of CPU; traces {traces.hexdigest()}"
    )
    return int(failed > 0)


def _in_time(seeds: range, minutes: float | None) -> Iterator[int]:
    end = None if minutes is None else time.perf_counter() + 60 * minutes
    return itertools.takewhile(lambda _: end is None or time.perf_counter() < end, seeds)


def _print_failure(result: Result) -> None:
    for violation in result.violations:
        print(f"seed {result.seed}: {violation}")
    if result.violations:
        print(f"  again: python -m simulation --seed {result.seed}")
    sys.stdout.flush()
