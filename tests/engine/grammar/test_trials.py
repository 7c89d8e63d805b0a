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

from engine.grammar import llguidance_grammar, llguidance_guide
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.guide import InvalidGrammar
from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.grammar.refused_grammars import RefusedGrammars
from engine.grammar.trial import CPU_S, TrialVerdict, ended_by
from engine.grammar.trial_client import TrialClient, TrialLost
from engine.server.grammar_queue import GrammarQueue

DEMO = Path(__file__).resolve().parents[3] / "models" / "stdlib-qa"
VOCABULARY, END = 4096, 4095


@pytest_asyncio.fixture
async def trials() -> AsyncIterator[TrialClient]:
    made = TrialClient(GrammarCompiler(DEMO, VOCABULARY, [END]))
    yield made
    await made.close()


def chained_rules(count: int) -> str:
    return "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(count)) + f'\nr{count}: "a"'


def chained_references(count: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{count}": {"type": "string"}}}


async def verdict(trials: TrialClient, **grammar: Any) -> TrialVerdict:
    return await trials.try_grammar(json.dumps(grammar))


async def test_what_exhausts_the_stack_ends_only_its_own_trial(trials: TrialClient) -> None:
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
async def test_what_is_too_much_is_named(trials: TrialClient, grammar: dict[str, Any], message: str) -> None:
    told = await trials.try_grammar(json.dumps(grammar))
    assert message in told.problem
    assert told.final


async def test_a_child_that_was_killed_is_started_again(trials: TrialClient) -> None:
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


SLOW = {"json_schema": {"type": "integer", "multipleOf": 999_983, "minimum": -4, "maximum": 10**18}}
"""It takes seconds."""


async def trial_of(trials: TrialClient, known: set[int]) -> int:
    """The process of the trial that begins next."""
    for _ in range(20_000):
        process = trials._process
        children = set() if process is None else children_of(process.pid)
        if children - known:
            return (children - known).pop()
        await asyncio.sleep(0.0005)
    raise AssertionError("no trial begins")


def children_of(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def is_polite(pid: int) -> bool:
    """Whether one of its threads has a lower priority than the process that tries grammars."""
    usual = os.getpriority(os.PRIO_PROCESS, os.getpid()) + 5
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        if os.sched_getscheduler(thread) == os.SCHED_IDLE or os.getpriority(os.PRIO_PROCESS, thread) > usual:
            return True
    return False


@pytest.mark.slow
async def test_a_trial_has_a_lower_priority_by_the_time_that_it_used_and_not_by_the_clock(trials: TrialClient) -> None:
    """On a machine that is busy a trial waits; that is no reason to let it wait for longer."""
    await verdict(trials, regex="a")
    task = asyncio.create_task(verdict(trials, **SLOW))
    pid = await trial_of(trials, set())
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(1.5)
    assert not is_polite(pid)
    os.kill(pid, signal.SIGCONT)
    polite = False
    while not task.done():
        with contextlib.suppress(OSError):
            polite = polite or is_polite(pid)
        await asyncio.sleep(0.005)
    assert polite
    await task


async def test_a_trial_that_nobody_waits_for_is_ended(trials: TrialClient) -> None:
    """These would never end by themselves. What is asked for meanwhile is answered."""
    await verdict(trials, regex="a")
    tasks, pids = [], set[int]()
    try:
        for _ in range(64):
            tasks.append(asyncio.create_task(verdict(trials, **SLOW)))
            pids.add(pid := await trial_of(trials, pids))
            os.kill(pid, signal.SIGSTOP)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await verdict(trials, regex="b")).problem == ""
        assert trials._process is not None
        for _ in range(1000):
            if not children_of(trials._process.pid):
                break
            await asyncio.sleep(0.005)
        else:
            pytest.fail("trials are left")
        assert not trials._waiting
    finally:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------ blame


class Fine:
    """Finds nothing wrong with any grammar."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self.asked: list[str] = []

    async def try_grammar(self, text: str) -> TrialVerdict:
        self.asked.append(text)
        await asyncio.sleep(0)
        return TrialVerdict("", self._compiler.prepared(text), None, 1000)


def make_grammars() -> LlguidanceGrammars:
    return LlguidanceGrammars(DEMO, VOCABULARY, [END])


async def kill_while_it_compiles(text: str, path: Path) -> None:
    """Leave the file as it is while the grammar is being compiled: as a replica does that is killed then."""
    grammars = make_grammars()
    left: list[bytes] = []
    proven = grammars.compile_proven

    def compile_proven(*proof: Any) -> Any:
        left.append(path.read_bytes())
        return proven(*proof)

    grammars.compile_proven = compile_proven  # type: ignore[method-assign]
    compilers = GrammarQueue(grammars, Fine(grammars.compiler), RefusedGrammars(path))
    await compilers.compile(text, "flow")
    await compilers.close()
    await asyncio.to_thread(path.write_bytes, left[0])


async def test_a_grammar_is_not_blamed_for_one_end_of_the_replica(tmp_path: Path) -> None:
    """Something else may have killed it; once the grammar was compiled, what was before does not count any more."""
    text, path = '{"regex": "(yes)+"}', tmp_path / "grammars"
    for _ in range(3):
        await kill_while_it_compiles(text, path)
        after = GrammarQueue(make_grammars(), Fine(make_grammars().compiler), RefusedGrammars(path))
        assert await after.compile(text, "flow")
        await after.close()


async def test_what_ended_the_replica_twice_is_refused_after_its_restart(tmp_path: Path) -> None:
    text, path = '{"regex": "(yes)+"}', tmp_path / "grammars"
    grammars = make_grammars()
    await kill_while_it_compiles(text, path)
    RefusedGrammars(path).close()  # a restart in which nobody asked for it
    await kill_while_it_compiles(text, path)
    crashed = GrammarQueue(make_grammars(), judge := Fine(grammars.compiler), RefusedGrammars(path))
    with pytest.raises(InvalidGrammar, match="the engine ended"):
        await crashed.compile(text, "flow")
    assert not judge.asked
    await crashed.compile('{"regex": "(no)+"}', "flow")
    await crashed.close()


def test_refusals_end_and_survive_a_torn_file(tmp_path: Path) -> None:
    now = [1000.0]
    refusals = RefusedGrammars(tmp_path / "grammars", lambda: now[0])
    refusals.refuse(b"a", "why")
    refusals.attempt(b"b")
    refusals.survived(b"b")
    refusals.attempt(b"c")
    refusals.close()
    refusals = RefusedGrammars(tmp_path / "grammars", lambda: now[0])
    assert refusals.problem(b"c") is None
    refusals.attempt(b"c")
    refusals.close()
    with (tmp_path / "grammars").open("ab") as file:
        file.write(b"\x00\x00\x00\x40torn")
    again = RefusedGrammars(tmp_path / "grammars", lambda: now[0])
    assert again.problem(b"a") == "why"
    assert again.problem(b"b") is None
    assert "the engine ended" in (again.problem(b"c") or "")
    now[0] += 3601
    assert again.problem(b"a") is again.problem(b"c") is None
    again.attempt(b"c")
    again.close()
    again = RefusedGrammars(tmp_path / "grammars", lambda: now[0])
    assert again.problem(b"c") is None, "strikes of more than an hour ago do not count"
    again.close()


def test_refusals_of_a_disk_that_was_full_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part of a record is written, and that a grammar passed is not: it is not blamed for the replica's end later."""
    refusals = RefusedGrammars(tmp_path / "grammars")
    refusals.attempt(b"innocent")
    refusals.close()
    refusals = RefusedGrammars(tmp_path / "grammars")
    refusals.attempt(b"innocent")
    write, write_bytes = os.write, Path.write_bytes

    def none(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    monkeypatch.setattr(Path, "write_bytes", none)
    refusals.survived(b"innocent")
    monkeypatch.setattr(os, "write", none)
    refusals.refuse(b"other", "why")
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    refusals.refuse(b"third", "why")
    refusals.close()
    again = RefusedGrammars(tmp_path / "grammars")
    assert again.problem(b"innocent") is None
    assert again.problem(b"other") == again.problem(b"third") == "why"
    again.close()


# ------------------------------------------------------------ what is remembered


def test_a_grammar_counts_what_it_grew_to_and_a_worn_one_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """States that outputs add to a grammar take memory too: in the worst case 13 MiB a second of CPU time."""
    monkeypatch.setattr(llguidance_grammar, "_REMEMBERED_BYTES", 64 << 20)
    known = LlguidanceGrammars(DEMO, VOCABULARY, [END])
    texts = [json.dumps({"regex": f"[a-z]{{{count}}}"}) for count in range(1, 4)]
    grown, exhausted, fresh = texts
    first, second = known.compiled(grown), known.compiled(exhausted)
    first._shared.spent, second._shared.exhausted = 3.0, True
    assert known.known(grown) is not None, "nothing makes room before something is remembered"
    known.compiled(fresh)
    assert known.known(grown) is None
    assert exhausted not in known._known
    assert known.known(fresh) is not None


def test_a_grammar_that_was_slow_once_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    known = LlguidanceGrammars(DEMO, VOCABULARY, [END])
    text = json.dumps({"regex": "[a-z ]{1,9}"})
    grammar = known.compiled(text)
    guide = grammar.guide()
    monkeypatch.setattr(llguidance_guide, "_MASK_S", -1.0)
    guide.accept_token(0)
    assert grammar.failure is not None
    assert isinstance(known.known(text), InvalidGrammar)
    monkeypatch.setattr(llguidance_grammar, "_FAILED_S", 0.0)
    assert known.known(text) is None, "it is compiled anew"


def test_a_trial_that_is_killed_from_outside_says_nothing_of_its_grammar() -> None:
    """As by a machine that is short of memory; our own limit lets it have its time first."""
    assert not ended_by(signal.SIGKILL, 0.5).final
    assert ended_by(signal.SIGKILL, CPU_S + 0.1).final
    assert ended_by(signal.SIGXCPU, CPU_S).final
