"""A whole isolation audit: each attack in turn, kept in a file while it goes on, so that it can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from turnpike.command_context import print_progress
from turnpike.command_line import CommandError
from turnpike.commands.audit.isolation_places import AS_IT_IS, DRAFTS, Place, after
from turnpike.commands.audit.isolation_probe import IsolationProbe, Oracle, Report, Timing

_KEPT_EVERY = 10
"""Samples after which the report is written."""
_MOST_BYTES = 64 << 20


class Asked(msgspec.Struct, frozen=True):
    """What an audit is of; times of another one cannot be added to it. `tiers`: to be attacked alone; with none, the
    prompts as they lie is the first attack. `steps`: the names of what happens between victim and attacker. `drafts`:
    whether it is tried how quickly answers come that the victim has had."""

    url: str
    tenant: str
    model: str
    samples: int
    words: int
    tiers: tuple[str, ...]
    steps: tuple[str, ...]
    drafts: bool = False


class KeptReport(msgspec.Struct, frozen=True):
    """The file. `finished`: false of what an audit that is under way, or was interrupted, has measured so far."""

    asked: Asked
    finished: bool
    timings: tuple[Timing, ...]
    oracles: tuple[Oracle, ...]


def interrupted(path: Path, asked: Asked) -> tuple[Timing, ...]:
    """What an audit that was interrupted had measured. Raises CommandError unless it was this one."""
    try:
        with path.open("rb") as file:
            report = msgspec.json.decode(file.read(_MOST_BYTES), type=KeptReport)
    except (OSError, ValueError) as error:  # what is longer than that is no JSON either
        raise CommandError(f"--resume: {path} is no report of an audit: {error}") from error
    if report.finished:
        raise CommandError(f"--resume: the audit of {path} is finished")
    if report.asked != asked:
        raise CommandError(f"--resume: {path} is of another audit: {msgspec.json.encode(report.asked).decode()[:1000]}")
    return report.timings


class IsolationAudit:
    """An audit by a probe. `path`: where its report is kept. `kept`: what one that was interrupted has measured."""

    def __init__(self, probe: IsolationProbe, asked: Asked, path: Path | None, kept: Sequence[Timing] = ()) -> None:
        self._probe, self._asked, self._path = probe, asked, path
        self._timings = {(timing.place, timing.same_project): timing for timing in kept}
        self._oracles: tuple[Oracle, ...] = ()
        self._finished = False

    async def run(self, steps: Sequence[tuple[str, str]]) -> Report:
        """Measure what was not yet measured, and ask the oracles at each place. `steps`: names and shell commands.

        Raises CommandError, and what the probe raises; what was measured until then is kept.
        """
        self._probe.progress = self._measured
        try:
            for tier in self._asked.tiers:
                print_progress(f"{tier}: driving prompts there")
                await self._attack(await self._probe.place(tier))
            if not self._asked.tiers:
                await self._attack(AS_IT_IS)
            if self._asked.drafts:
                await self._attack(DRAFTS)
            for name, command in steps:
                await self._attack(after(name, command))
            print_progress("")
            self._finished = True
        finally:
            self._keep()
        return Report(tuple(self._timings.values()), self._oracles)

    async def _attack(self, place: Place) -> None:
        samples = self._asked.samples
        for same_project in (True, False):
            begun = self._timings.get((place.name, same_project))
            if begun is None or min(len(begun.shared), len(begun.new)) < samples:
                timing = await self._probe.time(place, samples, same_project=same_project, begun=begun)
                self._timings[timing.place, same_project] = timing
                self._keep()
        self._oracles += await self._probe.oracles(place)

    def _measured(self, timing: Timing) -> None:
        self._timings[timing.place, timing.same_project] = timing
        done = len(timing.shared) + len(timing.new)
        whose = "same project" if timing.same_project else "other project"
        print_progress(f"{timing.place} {whose}: {done} of {2 * self._asked.samples}".lstrip())
        if done % _KEPT_EVERY == 0:
            self._keep()

    def _keep(self) -> None:
        if self._path is None:
            return
        report = KeptReport(self._asked, self._finished, tuple(self._timings.values()), self._oracles)
        new = self._path.with_name(self._path.name + ".new")
        try:
            new.write_bytes(msgspec.json.encode(report))
            new.replace(self._path)
        except OSError as error:
            raise CommandError(f"--json: {self._path} cannot be written: {error}") from error
