"""Grammars are tried in a process of their own: what ends it is refused, and what is quick does not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.compilers import PLACES, Compilers, TooManyWaiting, Turns
from engine.grammar import guiding, llguidance_grammar
from engine.grammar.compilation import GrammarCompiler
from engine.grammar.guide import InvalidGrammar
from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.grammar.refusals import Refusals
from engine.grammar.trial import CPU_S, Verdict, ended_by
from engine.grammar.trials import TrialLost, Trials

DEMO = Path(__file__).resolve().parents[2] / "models" / "stdlib-qa"
VOCABULARY, END = 4096, 4095


@pytest_asyncio.fixture
async def trials() -> AsyncIterator[Trials]:
    made = Trials(GrammarCompiler(DEMO, VOCABULARY, [END]))
    yield made
    await made.close()


def chained_rules(count: int) -> str:
    return "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(count)) + f'\nr{count}: "a"'


def chained_references(count: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{count}": {"type": "string"}}}


async def verdict(trials: Trials, **grammar: Any) -> Verdict:
    return await trials.judge(json.dumps(grammar))


async def test_what_exhausts_the_stack_ends_only_its_own_trial(trials: Trials) -> None:
    """So deep that the replica's own process would end by signal 11."""
    deep, fine = await asyncio.gather(
        verdict(trials, grammar=chained_rules(4500)), verdict(trials, json_schema={"type": "object"})
    )
    assert "too deep" in deep.problem
    assert deep.final
    assert fine.problem == ""
    assert fine.ending is not None


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ({"json_schema": chained_references(3000)}, "references"),
        ({"json_schema": {"a": json.loads("[" * 200 + "]" * 200)}}, "nested more than"),
        ({"regex": "(" * 3000 + "a" + ")" * 3000}, "nested more than"),
        ({"regex": "a" * 70_000}, "characters"),
        ({"choice": ["a"] * 10_001}, "texts"),
        ({"choice": ["a" * 300_000]}, "characters"),
        ({"regex": "(a?){2000}a{2000}"}, "too many expressions"),
        ({"regex": "("}, "unclosed group"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ],
)
async def test_what_is_too_much_is_named(trials: Trials, grammar: dict[str, Any], message: str) -> None:
    told = await trials.judge(json.dumps(grammar))
    assert message in told.problem
    assert told.final


async def test_a_child_that_was_killed_is_started_again(trials: Trials) -> None:
    assert (await verdict(trials, regex="a+")).problem == ""
    process = trials._process
    assert process is not None
    process.kill()
    await process.wait()
    for _ in range(3):  # whoever asks before it was noticed is told so
        with contextlib.suppress(TrialLost):
            assert (await verdict(trials, regex="a+")).problem == ""
            break
    else:
        pytest.fail("it is not started again")


# ------------------------------------------------------------ blame


class Fine:
    """Finds nothing wrong with any grammar."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self.asked: list[str] = []

    async def judge(self, text: str) -> Verdict:
        self.asked.append(text)
        await asyncio.sleep(0)
        return Verdict("", self._compiler.prepared(text), None, 1000)


def make_grammars() -> LlguidanceGrammars:
    return LlguidanceGrammars(DEMO, VOCABULARY, [END])


async def test_what_ended_the_replica_is_refused_after_its_restart(tmp_path: Path) -> None:
    """The file is read as it is while the grammar is being compiled: as a crash would leave it."""
    text, path = '{"regex": "(yes)+"}', tmp_path / "grammars"
    grammars = make_grammars()
    left: list[bytes] = []
    proven = grammars.compile_proven

    def compile_proven(*proof: Any) -> Any:
        left.append(path.read_bytes())
        return proven(*proof)

    grammars.compile_proven = compile_proven  # type: ignore[method-assign]
    compilers = Compilers(grammars, Fine(grammars.compiler), Refusals(path))
    await compilers.compile(text, "flow")
    await compilers.close()
    after = Compilers(make_grammars(), Fine(grammars.compiler), Refusals(path))
    await after.compile(text, "flow")  # it ended well
    await after.close()
    path.write_bytes(left[0])
    crashed = Compilers(make_grammars(), judge := Fine(grammars.compiler), Refusals(path))
    with pytest.raises(InvalidGrammar, match="the engine ended"):
        await crashed.compile(text, "flow")
    assert not judge.asked
    await crashed.compile('{"regex": "(no)+"}', "flow")
    await crashed.close()


def test_refusals_end_and_survive_a_torn_file(tmp_path: Path) -> None:
    now = [1000.0]
    refusals = Refusals(tmp_path / "grammars", lambda: now[0])
    refusals.refuse(b"a", "why")
    refusals.attempt(b"b")
    refusals.passed(b"b")
    refusals.attempt(b"c")
    refusals.close()
    with (tmp_path / "grammars").open("ab") as file:
        file.write(b"\x00\x00\x00\x40torn")
    again = Refusals(tmp_path / "grammars", lambda: now[0])
    assert again.problem(b"a") == "why"
    assert again.problem(b"b") is None
    assert "the engine ended" in (again.problem(b"c") or "")
    now[0] += 3601
    assert again.problem(b"a") is again.problem(b"c") is None
    again.close()


def test_refusals_of_a_disk_that_was_full_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part of a record is written, and that a grammar passed is not: it is not blamed for the replica's end later."""
    refusals = Refusals(tmp_path / "grammars")
    refusals.attempt(b"innocent")
    write, write_bytes = os.write, Path.write_bytes

    def none(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    monkeypatch.setattr(Path, "write_bytes", none)
    refusals.passed(b"innocent")
    monkeypatch.setattr(os, "write", none)
    refusals.refuse(b"other", "why")
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    refusals.refuse(b"third", "why")
    refusals.close()
    again = Refusals(tmp_path / "grammars")
    assert again.problem(b"innocent") is None
    assert again.problem(b"other") == again.problem(b"third") == "why"
    again.close()


# ------------------------------------------------------------ turns


class Held:
    """Turns that are taken and given back by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = Turns(lambda: self.now)
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
    monkeypatch.setattr("engine.compilers.MAX_WAITING", 3)
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


async def test_one_that_has_begun_keeps_its_place_when_its_client_leaves() -> None:
    """Else whoever leaves at once could have any number of children under way."""
    grammars = make_grammars()
    gate = asyncio.Event()
    running = most = 0

    class Slow(Fine):
        async def judge(self, text: str) -> Verdict:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1
            return await super().judge(text)

    compilers = Compilers(grammars, Slow(grammars.compiler), Refusals())
    for number in range(12):
        task = asyncio.create_task(compilers.compile(json.dumps({"regex": f"a{{{number + 1}}}"}), "flow"))
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert running == most == 2
    gate.set()
    assert await compilers.compile('{"regex": "a{1}"}', "flow")
    await compilers.close()


def test_a_grammar_counts_what_it_grew_to_and_a_worn_one_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """States that outputs add to a grammar take memory too: in the worst case 13 MiB a second of CPU time."""
    monkeypatch.setattr(llguidance_grammar, "_REMEMBERED_BYTES", 64 << 20)
    known = LlguidanceGrammars(DEMO, VOCABULARY, [END])
    texts = [json.dumps({"regex": f"[a-z]{{{count}}}"}) for count in range(1, 4)]
    grown, worn, fresh = texts
    first, second = known.compiled(grown), known.compiled(worn)
    first._shared.spent, second._shared.worn = 3.0, True
    assert known.known(grown) is not None, "nothing makes room before something is remembered"
    known.compiled(fresh)
    assert known.known(grown) is None
    assert worn not in known._known
    assert known.known(fresh) is not None


def test_a_grammar_that_was_slow_once_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    known = LlguidanceGrammars(DEMO, VOCABULARY, [END])
    text = json.dumps({"regex": "[a-z ]{1,9}"})
    grammar = known.compiled(text)
    guide = grammar.guide()
    monkeypatch.setattr(guiding, "_MASK_S", -1.0)
    guide.take(0)
    assert grammar.failure is not None
    assert isinstance(known.known(text), InvalidGrammar)
    monkeypatch.setattr(llguidance_grammar, "_FAILED_S", 0.0)
    assert known.known(text) is None, "it is compiled anew"


def test_a_trial_that_is_killed_from_outside_says_nothing_of_its_grammar() -> None:
    """As by a machine that is short of memory; our own limit lets it have its time first."""
    assert not ended_by(signal.SIGKILL, 0.5).final
    assert ended_by(signal.SIGKILL, CPU_S + 0.1).final
    assert ended_by(signal.SIGXCPU, CPU_S).final
