"""Adapters in one whole: uploaded to a gateway, brought to its replica, computed, billed; the base stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tokenizers import Tokenizer

from tests import adapter_files
from tests.e2e.conftest import Running
from tests.e2e.processes import first_key, process
from tests.servers import free_port

FOLDER = Path(__file__).resolve().parents[2] / "models" / "stdlib-qa"
CONFIG = json.loads((FOLDER / "config.json").read_text())
INVOCATION = "Now check all of this."


def shapes() -> dict[str, tuple[int, int]]:
    hidden, inner, heads = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["num_attention_heads"]
    dim = CONFIG.get("head_dim") or hidden // heads
    keys = CONFIG["num_key_value_heads"] * dim
    attention = {"q": (heads * dim, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, heads * dim)}
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    return {f"self_attn.{part}_proj": shape for part, shape in attention.items()} | {
        f"mlp.{part}_proj": shape for part, shape in mlp.items()
    }


def upload(running: Running, name: str, seed: int, **fields: Any) -> dict[str, Any]:
    tensors = adapter_files.safetensors(
        adapter_files.matrices(16, seed=seed, shapes=shapes(), layers=CONFIG["num_hidden_layers"])
    )
    answer = httpx.post(
        f"{running.base}/v1/adapters",
        headers={"authorization": f"Bearer {running.key}"},
        data={"model": "stdlib-qa", "name": name, "config": adapter_files.config(16, 2.0, **fields).decode()},
        files={"file": ("adapter_model.safetensors", tensors)},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def ask(client: OpenAI, model: str, messages: list[Any], tokens: int = 12) -> Any:
    return client.chat.completions.create(
        model=model, messages=messages, max_tokens=tokens, temperature=0, logprobs=True
    )


def drawn(answer: Any) -> list[tuple[str, float]]:
    """The tokens of an answer with their log probabilities: equal only where the logits are."""
    return [(token.token, token.logprob) for token in answer.choices[0].logprobs.content]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("adapters")
    port, data = free_port(), folder / "data"
    words = ("--port", str(port), "--data-dir", str(data), "--model", str(FOLDER))
    with process(folder, "serve", *words) as started:
        yield Running(started, f"http://127.0.0.1:{port}", first_key(started), data, 0)
        assert started.stop() == 0, started.errors


def test_requests_of_the_base_and_of_adapters_get_their_own_answers(running: Running) -> None:
    question: list[Any] = [{"role": "user", "content": "What does os.path.join do?"}]
    with OpenAI(api_key=running.key, base_url=f"{running.base}/v1") as client:
        before = drawn(ask(client, "stdlib-qa", question))
        upload(running, "one", 1)
        upload(running, "two", 2)
        one = drawn(ask(client, "stdlib-qa:one", question))
        two = drawn(ask(client, "stdlib-qa:two", question))
        assert len({str(answer) for answer in (before, one, two)}) == 3
        assert drawn(ask(client, "stdlib-qa", question)) == before
        assert drawn(ask(client, "stdlib-qa:one", question)) == one
        assert {model.id for model in client.models.list()} == {"stdlib-qa", "stdlib-qa:one", "stdlib-qa:two"}


def test_an_activated_adapter_reads_nearly_all_of_the_bases_conversation(running: Running) -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    invocation = tokenizer.encode(INVOCATION, add_special_tokens=False).ids
    with OpenAI(api_key=running.key, base_url=f"{running.base}/v1") as client:
        room = client.models.retrieve("stdlib-qa").context_tokens  # type: ignore[attr-defined]
        text = "The function joins paths. " * (room // 8)
        messages: list[Any] = [{"role": "user", "content": text}]
        base = ask(client, "stdlib-qa", messages, 8)
        messages += [{"role": "assistant", "content": base.choices[0].message.content}]
        messages += [{"role": "user", "content": INVOCATION}]
        upload(running, "checker", 3, alora_invocation_tokens=invocation)
        warm = ask(client, "stdlib-qa:checker", messages)
        prompt, read = warm.usage.prompt_tokens, warm.usage.prompt_tokens_details.cached_tokens
        assert prompt > 5000
        assert read >= 0.99 * prompt, (read, prompt)
        assert drawn(warm) != drawn(ask(client, "stdlib-qa", messages))
