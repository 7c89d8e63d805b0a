"""Grammars compile fairly between flows, and clients that leave hold nobody up."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.refused_grammars import RefusedGrammars
from engine.grammar.trial import TrialVerdict
from engine.server.grammar_queue import PLACES, CompileSlots, GrammarQueue, TooManyWaiting
from tests.engine.grammar.test_trials import Fine, make_grammars
from tests.waiting import LONG_S, until


class Held:
    """Turns that are taken and given back by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = CompileSlots(lambda: self.now)
        self.running: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, flow: str, name: str) -> asyncio.Task[None]:
        async def hold() -> None:
            async with self.turns.turn(flow):
                end = self.running[name] = asyncio.Event()
                await end.wait()
                del self.running[name]

        task = asyncio.create_task(hold())
        self._tasks.append(task)
        for _ in range(4):
            await asyncio.sleep(0)
        return task

    async def end(self, name: str) -> None:
        self.running[name].set()
        for _ in range(6):
            await asyncio.sleep(0)


async def test_slow_grammars_hold_up_only_their_own_flow() -> None:
    held = Held()
    for flow in range(20):  # each of these is a tenant whose grammars are all slow
        for number in range(5):
            await held.ask(f"slow{flow}", f"slow{flow}.{number}")
    assert len(held.running) == PLACES
    for _ in range(10):  # all of them have shown by now that they are slow
        held.now += 2.0
        for name in list(held.running):
            await held.end(name)
    assert len(held.running) < PLACES
    await held.ask("quick", "quick")
    assert "quick" in held.running
    await held.end("quick")
    per_flow = [name.partition(".")[0] for name in held.running]
    assert len(per_flow) == len(set(per_flow))


async def test_a_flow_waits_in_a_bounded_queue_and_may_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.server.grammar_queue.MAX_WAITING", 3)
    held = Held()
    tasks = [await held.ask("one", str(number)) for number in range(5)]
    assert set(held.running) == {"0", "1"}
    with pytest.raises(TooManyWaiting):
        await (await held.ask("one", "too many"))
    tasks[3].cancel()
    await asyncio.sleep(0)
    tasks.append(await held.ask("one", "5"))
    for name in ("0", "1", "2", "4", "5"):
        await held.end(name)
    assert [task.cancelled() for task in tasks] == [False, False, False, True, False, False]


class Gated(Fine):
    """Has trials under way until its gate opens, or they are cancelled."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        super().__init__(compiler)
        self.gate = asyncio.Event()
        self.running = self.most = 0

    async def try_grammar(self, text: str) -> TrialVerdict:
        if "slow" in text:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.gate.wait()
            finally:
                self.running -= 1
        return await super().try_grammar(text)


def slow(number: int) -> str:
    return json.dumps({"regex": f"(slow){{{number + 1}}}"})


async def cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    left = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in left)


async def test_clients_that_leave_give_their_places_back_at_once() -> None:
    """In their trials or queued for them; those who share a grammar with one that stays have it go on."""
    grammars = make_grammars()
    compilers = GrammarQueue(grammars, judge := Gated(grammars.compiler), RefusedGrammars())
    for flows in (1, 64):
        tasks = [asyncio.create_task(compilers.compile(slow(n), f"flow {n % flows}")) for n in range(64)]
        await until(lambda: judge.running == min(2 * flows, PLACES))  # noqa: B023  # called here
        for _ in range(20):  # would more of them begin
            await asyncio.sleep(0)
        assert judge.running == min(2 * flows, PLACES)
        async with asyncio.timeout(LONG_S):
            await cancel(tasks)
            assert await compilers.compile(json.dumps({"regex": f"quick{flows}"}), "flow 0")
        assert judge.running == 0
    assert judge.most == PLACES
    leaving, staying = (asyncio.create_task(compilers.compile(slow(0), "flow")) for _ in range(2))
    await until(lambda: judge.running == 1)
    await cancel([leaving])
    assert judge.running == 1
    judge.gate.set()
    assert await staying
    await compilers.close()


async def test_one_that_leaves_and_comes_back_has_no_more_trials_than_others() -> None:
    grammars = make_grammars()
    compilers = GrammarQueue(grammars, judge := Gated(grammars.compiler), RefusedGrammars())
    for number in range(12):
        task = asyncio.create_task(compilers.compile(slow(number), "flow"))
        await until(lambda: judge.running == 1)
        await cancel([task])
    assert judge.most == 1
    assert judge.running == 0
    await compilers.close()


async def test_a_client_that_leaves_a_thread_leaves_it_its_place_and_the_grammar_its_blame(tmp_path: Path) -> None:
    """A thread cannot be ended: nothing else may take its place, and what it ends the replica by is to be known."""
    grammars, gate = make_grammars(), threading.Event()
    proven = grammars.compile_proven

    def compile_proven(text: str, *proof: Any) -> Any:
        assert "slow" not in text or gate.wait(60)
        return proven(text, *proof)

    grammars.compile_proven = compile_proven  # type: ignore[method-assign]
    compilers = GrammarQueue(grammars, Fine(grammars.compiler), RefusedGrammars(tmp_path / "grammars"))
    tasks = [asyncio.create_task(compilers.compile(slow(number), "flow")) for number in range(64)]
    await asyncio.sleep(0.05)
    await cancel(tasks)
    assert await compilers.compile('{"regex": "quick"}', "another flow")
    path = tmp_path / "left by a replica that ends now"
    path.write_bytes((tmp_path / "grammars").read_bytes())
    digests = [grammars.compiler.digest(slow(number)) for number in range(3)]
    left = RefusedGrammars(path)
    for digest in digests:
        left.attempt(digest)
    left.close()
    left = RefusedGrammars(path)
    assert [left.problem(digest) is not None for digest in digests] == [True, True, False]
    left.close()
    gate.set()
    assert await compilers.compile(slow(2), "flow")
    await compilers.close()
