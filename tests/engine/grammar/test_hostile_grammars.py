"""Hostile grammars against a real replica: it goes on, and answers its neighbours as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hostile_inputs import hostile_grammar
from protocol.requests import Done
from tests.engine.conftest import SCOPES, generate, write_model
from tests.engine.fake_gateway import Client, ReplicaProcess
from tests.engine.grammar.test_trials import chained_references, chained_rules
from tests.engine.tiny_tokenizer import text_of, write_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ALL = tuple(SCOPES.values())
PROMPT = list(range(2, 40))


async def asked(client: Client, id: str, grammar: Any) -> Done:
    text = grammar if isinstance(grammar, str) else json.dumps(grammar)
    client.generate(generate(id, PROMPT, 12, grammar=text, flow=f"flow {id}", temperature=1.0, seed=3), ALL)
    await client.finished(id)
    return client.done[id]


async def test_one_body_does_not_end_the_replica(tmp_path: Path) -> None:
    """Deep in every way that a client can say: each is refused, names the field, and nobody else notices."""
    model = write_tokenizer(write_model(tmp_path / "model"))
    process = await ReplicaProcess.start(tmp_path, model)
    client = await Client.dial(process.path)
    for number, grammar in enumerate(
        [{"json_schema": chained_references(3000)}, {"json_schema": {"a": json.loads("[" * 900 + "]" * 900)}},
         {"grammar": chained_rules(4500)}, {"regex": "(" * 5000 + "a" + ")" * 5000}]
    ):  # fmt: skip
        for again in ("", " again"):
            done = await asked(client, f"{number}{again}", grammar)
            assert (done.reason, done.invalid) == ("rejected", "grammar"), done
            assert "deep" in (done.error or "") or "references" in (done.error or "")
    done = await asked(client, "fine", {"choice": ["yes", "no"]})
    assert done.reason == "stop"
    assert text_of(model, client.tokens["fine"]) in {"yes", "no"}
    assert process.status is None
    await client.close()
    assert await process.stop() == 0


async def test_hundreds_of_hostile_grammars(tmp_path: Path) -> None:
    """Those of the benchmark's first seeds. What comes of each is its own affair; an answer comes of all."""
    model = write_tokenizer(write_model(tmp_path / "model"))
    process = await ReplicaProcess.start(tmp_path, model)
    client = await Client.dial(process.path)
    plain = generate("plain", PROMPT, 40, temperature=1.0, seed=9)
    client.generate(plain, ALL)
    await client.finished("plain")
    numbers = range(200)
    for number in numbers:
        grammar = hostile_grammar(number)
        client.generate(generate(str(number), PROMPT, 8, grammar=grammar, flow=f"flow {number % 50}", seed=number), ALL)
    client.generate(generate("beside", PROMPT, 40, temperature=1.0, seed=9), ALL)
    await client.finished("beside")
    assert client.tokens["beside"] == client.tokens["plain"]
    ordinary = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert (await asked(client, "ordinary", {"json_schema": ordinary})).reason in ("stop", "length")
    await client.finished(*map(str, numbers))
    reasons = {client.done[str(number)].reason for number in numbers}
    assert {"rejected", "stop"} <= reasons <= {"rejected", "stop", "length", "error"}
    assert process.status is None
    await client.close()
    assert await process.stop() == 0
