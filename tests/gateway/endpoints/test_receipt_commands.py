"""`turnpike recount` and `replay` on answers of a running gateway, `verify` and `receipts` on its data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack
from turnpike.cli import main

ASKED = {"x-turnpike-receipt": "true", "anthropic-version": "2023-06-01"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Where is Paris?"}], "max_tokens": 20, "seed": 1}
COMPLETION = {"model": "tiny", "prompt": ["Once", "Twice"], "max_tokens": 20, "temperature": 0}
Run = Callable[..., "asyncio.Future[int]"]


async def exchange(stack: Stack, folder: Path, path: str, body: Any) -> tuple[str, str]:
    """The files of a request and its answer."""
    answer = await stack.http.post(path, json=body, headers={"x-api-key": stack.key, **ASKED})
    assert answer.status_code == 200, answer.text
    (folder / "request.json").write_text(json.dumps(body))
    (folder / "answer.json").write_bytes(answer.content)
    return str(folder / "request.json"), str(folder / "answer.json")


def change(path: str, edit: Callable[[Any], None]) -> None:
    """Alter a JSON file."""
    value = json.loads(Path(path).read_text())
    edit(value)
    Path(path).write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION), ("/v1/messages", CHAT | {"seed": None})],
)
async def test_recount(
    stack: Stack, tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str], path: str, body: Any
) -> None:
    stack.say("In France.")
    body = {name: value for name, value in body.items() if value is not None}
    request, answer = await exchange(stack, tmp_path, path, body)

    async def recount() -> tuple[int, str]:
        status = await asyncio.to_thread(main, ["recount", request, answer, str(model_folder)])
        return status, capsys.readouterr().out

    assert await recount() == (0, "prompt and output are counted alike\n")
    right = json.loads((tmp_path / "answer.json").read_text())
    for counts in ("prompt", "output"):
        change(answer, lambda said, counts=counts: said["receipts"][0]["event"]["counts"].update({counts: 99}))  # type: ignore[misc]
        status, text = await recount()
        assert status == 1
        assert "the receipt says 99" in text
        change(answer, lambda said: said.update(right))
    change(answer, lambda said: said["receipts"][0]["answer"].update({"prompt": "0" * 64}))
    assert "are not those of the receipt" in (await recount())[1]


async def test_replay(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNPIKE_KEY", stack.key)
    stack.say("In France.")
    request, answer = await exchange(stack, tmp_path, "/v1/chat/completions", CHAT)

    async def replay() -> tuple[int, str]:
        status = await asyncio.to_thread(main, ["replay", request, answer, "--gateway", stack.base])
        return status, capsys.readouterr().out

    assert await replay() == (0, "the same tokens, by the same numerics\n")
    stack.say("In Texas.")
    status, text = await replay()
    assert status == 1
    assert "choice 0 has other tokens now" in text
    change(request, lambda body: body.pop("seed"))
    assert (await replay())[0] == 2


async def test_what_cannot_be_compared(stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack.replica.script = Script(tokens=stack.tokens("In France."))
    request, answer = await exchange(stack, tmp_path, "/v1/chat/completions", CHAT)
    change(answer, lambda said: said.pop("receipts"))
    assert await asyncio.to_thread(main, ["recount", request, answer, str(tmp_path)]) == 2
    assert "has no receipts" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["verify", "-", str(tmp_path / "nothing")]) == 2
    (tmp_path / "empty").write_text("")
    assert await asyncio.to_thread(main, ["verify", "-", str(tmp_path / "empty")]) == 0
    program = tmp_path / "verifier.py"
    assert await asyncio.to_thread(main, ["verify", "--write-verifier", str(program)]) == 0
    assert "def merkle_root" in program.read_text()
