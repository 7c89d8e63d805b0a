"""Twenty faults, planted in the product's own code in memory, that the checkers have to find.

Ten take back what was mended once: `mended` names the commit, or what it mended. A mutant is a rewriting of a module's
source. What differs in the code of its functions is put into those that are there, so that whoever imported them gets
it.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec

from simulation.runs import Worlds

_MOST_SEEDS = 60
"""So many seeds a mutant is looked for."""


class Mutant(msgspec.Struct, frozen=True):
    """`old` stands once in the module's source, and becomes `new`."""

    name: str
    module: str
    old: str
    new: str
    mended: str = ""

    def plant(self) -> None:
        """Change the code of this process. Raises ValueError if the source is not what it was."""
        module = importlib.import_module(self.module)
        source = inspect.getsource(module)
        if source.count(self.old) != 1:
            raise ValueError(f"mutant {self.name}: its source stands {source.count(self.old)} times in {self.module}")
        changed = compile(source.replace(self.old, self.new), module.__file__ or "", "exec", dont_inherit=True)
        codes = {code.co_qualname: code for code in _codes(changed)}
        planted = 0
        for function in _functions(module):
            code = codes.get(function.__code__.co_qualname)
            if code is not None and _differs(code, function.__code__):
                function.__code__ = code
                planted += 1
        if not planted:
            raise ValueError(f"mutant {self.name}: no function differs")


MUTANTS = (
    Mutant(
        "no release after a fault before it was sent",
        "gateway.generation.generation_task",
        "if self._stream is None:  # no replica says what became of it",
        "if False:",
        "ba93a38e",
    ),
    Mutant(
        "send what ended while it was checked",
        "gateway.generation.generation_task",
        "if self.state.outcome is not None:  # no wait comes between this and `_send`",
        "if False:",
        "dd2f7e26",
    ),
    Mutant(
        "forget an allowance that may have been set aside",
        "billing.reservation.allowances",
        "self._unsure.append(asked.request_id)",
        "pass",
        "53465c87",
    ),
    Mutant(
        "give no claim back of what never began",
        "billing.reservation.allowances",
        "            allowance.end(hold.request_id, cost)",
        "            allowance.end(hold.request_id, cost) if cost else None",
        "c5e24a8a",
    ),
    Mutant(
        "give holds back by the clock, whatever journals know",
        "gateway.recovery.orphaned_holds",
        "            if waited_for:\n                return",
        "            if False:\n                return",
        "0b91d08c",
    ),
    Mutant(
        "take messages of an earlier attempt",
        "gateway.fleet.replica_stream",
        "if isinstance(message, Began | Tokens) and message.attempt != self.attempt:",
        "if False:",
        "9c195b23",
    ),
    Mutant(
        "forget what was emitted",
        "gateway.generation.attempts",
        "emitted=choices.emitted,",
        "emitted=tuple(() for _ in choices.emitted),",
        "85ac124a",
    ),
    Mutant(
        "bill from the database's hold, not from the one that was carried",
        "gateway.recovery.journal_recovery",
        "        if not done.claim:\n",
        "        if True:\n",
        "917801a0",
    ),
    Mutant(
        "run a key that another runs",
        "response_store.idempotency",
        "            row = (await session.execute(select(idempotency_claim).where(*_named(new.key)))).one_or_none()\n"
        "        return await self.claim(new) if row is None else _claim(row)",
        "            return None",
        "36feedf3",
    ),
    Mutant(
        "release no hold whose reservation failed",
        "gateway.generation.generation_task",
        "            # the hold may exist although no answer came\n"
        '            await self._deps.recorder.once_release(self.prepared.request_id, "not admitted")\n',
        "",
        "a hold whose commit was not acknowledged",
    ),
    Mutant(
        "no sync of the spool",
        "billing.spool.segments",
        "            os.fdatasync(self._descriptor)\n",
        "",
    ),
    Mutant(
        "acknowledge before the spool has it",
        "gateway.generation.usage_recording",
        "        await self._deps.recorder.use(hold, event, failing=record_instead)\n"
        "        if sequence:\n"
        "            self._deps.fleet.acknowledge(stream, sequence)\n",
        "        if sequence:\n"
        "            self._deps.fleet.acknowledge(stream, sequence)\n"
        "        await self._deps.recorder.use(hold, event, failing=record_instead)\n",
    ),
    Mutant(
        "take a batch for settled when the database is away",
        "billing.settlement.settler",
        "            except DatabaseUnavailable as error:\n                await self._wait(error)\n"
        "            except Exception:",
        "            except DatabaseUnavailable as error:\n                self._finish(batch, Settled())\n"
        "                return\n"
        "            except Exception:",
    ),
    Mutant(
        "ignore the fence",
        "engine.server.journal",
        "        return gateway_epoch in self._state.fenced",
        "        return False",
    ),
    Mutant(
        "forget at the start what had begun",
        "engine.server.journal",
        "            self._end(handle, request.crashed())\n",
        "            self._state.running.pop(handle)\n",
    ),
    Mutant(
        "send nothing again that a lost gateway had",
        "engine.server.done_outbox",
        "            if holder is link and sequence not in self._pending:\n                self._orphan(sequence)",
        "            pass",
    ),
    Mutant(
        "forget what was taken out of an allowance",
        "billing.reservation.allowances",
        "self.free = max(0, self.free + amount - cost)",
        "self.free = self.free + amount",
    ),
    Mutant(
        "lose the journal's records when the disk is full",
        "engine.server.journal",
        "                self._buffer.insert(0, data)\n            with contextlib",
        "                pass\n            with contextlib",
    ),
    Mutant(
        "bill what came, delivered or not",
        "gateway.generation.generation_task",
        'delivered = self._choices.tokens if outcome.status == "ok" else self.delivery.delivered',
        "delivered = self._choices.tokens",
    ),
    Mutant(
        "settle an attempt twice under two ids",
        "billing.settlement.settlement",
        "    if not other_ids:\n        return events, []",
        "    if True:\n        return events, []",
    ),
)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _differs(one: CodeType, other: CodeType) -> bool:
    if len(one.co_consts) != len(other.co_consts) or (one.co_code, one.co_names) != (other.co_code, other.co_names):
        return True
    return any(
        _differs(mine, theirs) if isinstance(mine, CodeType) and isinstance(theirs, CodeType) else mine != theirs
        for mine, theirs in zip(one.co_consts, other.co_consts, strict=True)
    )


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods that a module makes."""
    owners: list[Any] = [module, *(each for each in vars(module).values() if inspect.isclass(each))]
    for owner in owners:
        for member in list(vars(owner).values()):
            for each in (member, *(getattr(member, part, None) for part in ("__func__", "__wrapped__", "fget"))):
                if isinstance(each, FunctionType) and each.__module__ == module.__name__:
                    yield inspect.unwrap(each)


def hunt(worlds: Worlds, arguments: argparse.Namespace) -> int:
    """Plant each mutant, and run seeds until one finds it. Returns 1 unless 18 of 20 are found, or that asked for."""
    wanted = [mutant for mutant in MUTANTS if arguments.mutant in (None, mutant.name)]
    if not wanted:
        print("there is no such mutant; there are:", *(mutant.name for mutant in MUTANTS), sep="\n  ")
        return 2
    began, found = time.perf_counter(), 0
    for mutant in wanted:
        tried = range(arguments.first, arguments.first + _MOST_SEEDS)
        seeds, why = _look_for(worlds, mutant.plant, tried, arguments.jobs)

        found += bool(why)
        told = f"found in seed {seeds}: {why[:160]}" if why else f"NOT FOUND in {_MOST_SEEDS} seeds"
        print(f"{mutant.name}{f' [{mutant.mended}]' if mutant.mended else ''}: {told}")
        sys.stdout.flush()
    print(f"{found} of {len(wanted)} found, {time.perf_counter() - began:.0f} s")
    return int(found < min(len(wanted), 18))


def _look_for(worlds: Worlds, plant: Callable[[], None], seeds: range, jobs: int) -> tuple[int, str]:
    """The first of these seeds that finds it, and what it finds; or nothing."""
    for some in _batched(seeds, jobs):
        for result in worlds.run(some, jobs, plant):
            if result.violations:
                return result.seed, result.violations[0]
    return 0, ""


def _batched(seeds: range, size: int) -> Iterator[range]:
    for at in range(0, len(seeds), size):
        yield seeds[at : at + size]
