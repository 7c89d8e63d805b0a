"""A real replica process while a grammar is compiled: aborts, deadlines and credit are heard."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from protocol.requests import Abort, Counts, Credit
from tests.engine.conftest import SCOPES, VOCABULARY, generate, write_model
from tests.engine.fake_gateway import Client, ReplicaProcess
from tests.engine.tiny_tokenizer import text_of, write_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("connections")]
ALL = tuple(SCOPES.values())
LONG = [(11 * i + i * i) % VOCABULARY for i in range(300)]


def slow_compiler(gate: Path) -> str:
    """A fault for a replica: grammars compile only when the file `gate` exists; those with "quick" in them compile at
    once."""
    return f"""
import os, time
from engine.grammar.llguidance_grammar import LlguidanceGrammars
quick = LlguidanceGrammars.compile_proven
def slow(self, text, *proof):
    while "quick" not in text and not os.path.exists({str(gate)!r}):
        time.sleep(0.005)
    return quick(self, text, *proof)
LlguidanceGrammars.compile_proven = slow
"""


async def test_abort_while_a_grammar_is_compiled(tmp_path: Path):
    """The request ends at once, and once. Others that asked for the same grammar get it."""
    model = write_tokenizer(write_model(tmp_path / "model"))
    gate = tmp_path / "gate"
    process = await ReplicaProcess.start(tmp_path, model, fault=slow_compiler(gate))
    client = await Client.dial(process.path)
    grammar = '{"choice": ["yes", "no"]}'
    client.generate(generate("left", LONG, 8, grammar=grammar), ALL)
    client.send(generate("stays", LONG, 8, grammar=grammar), generate("plain", LONG, 8), Abort("left", "left"))
    await client.finished("left", "plain")
    assert (client.done["left"].reason, client.done["left"].counts) == ("rejected", Counts())
    assert "left" not in client.began
    gate.touch()
    await client.finished("stays")
    assert client.done["stays"].reason == "stop"
    assert text_of(model, client.tokens["stays"]) in {"yes", "no"}
    # The same id may be used again; the end was told once.
    del client.done["left"]
    client.send(generate("left", LONG, 8, grammar=grammar))
    await client.finished("left")
    assert client.done["left"].reason == "stop"
    await client.close()
    assert await process.stop() == 0


async def test_a_deadline_while_a_grammar_is_compiled(tmp_path: Path):
    """The request ends at its deadline, not when the compiler is done. A compiler that fails in its own way is
    named."""
    model = write_tokenizer(write_model(tmp_path / "model"))
    gate = tmp_path / "gate"
    process = await ReplicaProcess.start(tmp_path, model, fault=slow_compiler(gate))
    client = await Client.dial(process.path)
    slow = generate("late", LONG, 8, grammar='{"choice": ["yes", "no"]}', deadline=time.time() + 0.1)
    client.generate(slow, ALL)
    client.send(generate("rootless", LONG, 8, grammar=json.dumps({"grammar": 'leaf ::= "a"'})))
    await client.finished("late")  # which is not compiled yet
    assert (client.done["late"].reason, client.done["late"].counts) == ("deadline", Counts())
    assert client.done["late"].sequence > 0
    assert "late" not in client.began
    gate.touch()
    await client.finished("rootless")
    assert (client.done["rootless"].reason, client.done["rootless"].invalid) == ("rejected", "grammar")
    client.send(generate("after", LONG, 4))
    await client.finished("after")
    assert client.done["after"].reason == "length"
    await client.close()
    assert await process.stop() == 0


async def test_what_is_said_while_a_grammar_is_compiled_is_done_afterwards(tmp_path: Path):
    """Credit, and the end of one choice; a grammar that compiles quickly does not wait for one that does not."""
    model = write_tokenizer(write_model(tmp_path / "model"))
    gate = tmp_path / "gate"
    process = await ReplicaProcess.start(tmp_path, model, fault=slow_compiler(gate))
    client = await Client.dial(process.path)
    grammar, quick = '{"regex": "(yes){3}"}', '{"choice": ["quick"]}'
    client.generate(generate("slow", LONG, 30, grammar=grammar, credit=1), ALL)
    client.send(
        Credit("slow", 0, 1 << 20),
        generate("one of two", LONG, 30, grammar=grammar, choices=2),
        Abort("one of two", choice=1),
        generate("quick", LONG, 30, grammar=quick),
    )
    await client.finished("quick")
    assert "slow" not in client.began
    assert client.done["quick"].reason == "stop"
    gate.touch()
    await client.finished("slow", "one of two")
    assert client.done["slow"].reason == "stop"
    assert text_of(model, client.tokens["slow"]) == "yes" * 3
    assert client.done["one of two"].reasons == ("stop", "abort")
    await client.close()
    assert await process.stop() == 0
