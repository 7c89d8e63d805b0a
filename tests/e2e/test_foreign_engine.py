"""A gateway whose replica has llama.cpp behind it: official clients, streams, ends, money; nothing there is special."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI

from tests.e2e.deployment import Deployment, assert_books
from tests.e2e.processes import DEMO_MODEL, get
from tests.engine.foreign.conftest import LlamaServer, demo_gguf, llama  # noqa: F401  # fixtures
from tests.servers import postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MODEL = "stdlib-qa"
ASKED = [{"role": "user", "content": "What does os.path.join do?"}]


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory,
    redis_url: str,
    llama: LlamaServer,  # noqa: F811
) -> Iterator[Deployment]:
    with postgres_server() as server:
        made = Deployment(tmp_path_factory.mktemp("deployment"), server.url, redis_url)
        made.env["TURNPIKE_MODEL"] = str(DEMO_MODEL)
        made.command("prices", "set", "--from-model-folder")
        try:
            made.start("engine", "--foreign", "llamacpp", "--foreign-url", llama.url)
            for name in ("gateway", "worker"):
                made.start(name)
            made.wait_ready()
            yield made
        finally:
            made.clean_up()


def test_both_clients_are_answered_and_billed_by_our_counts(deployment: Deployment):
    openai = OpenAI(base_url=f"{deployment.base}/v1", api_key=deployment.key, max_retries=0)
    whole = openai.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=40, logprobs=True)  # type: ignore[call-overload]
    assert whole.choices[0].logprobs is not None
    stream = openai.chat.completions.create(
        model=MODEL,
        messages=ASKED,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert "Join" in said
    assert chunks[-1].usage == whole.usage
    anthropic = Anthropic(base_url=deployment.base, api_key=deployment.key, max_retries=0)
    message = anthropic.messages.create(model=MODEL, messages=ASKED, max_tokens=40, extra_body={"temperature": 0})  # type: ignore[arg-type]
    assert message.content[0].text == said  # type: ignore[union-attr]
    answer = openai.chat.completions.create(
        model=MODEL,
        messages=ASKED,  # type: ignore[arg-type]
        max_tokens=60,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
    )
    assert answer.choices[0].message.content in {"yes", "no"}
    with pytest.raises(BadRequestError, match=r"llama\.cpp constrains"):
        openai.chat.completions.create(
            model=MODEL,
            messages=ASKED,  # type: ignore[arg-type]
            extra_body={"structured_outputs": {"regex": "a+"}},
        )
    assert_books(deployment)
    rows = deployment.query("SELECT count(*) FROM usage_event")[0][0]
    assert rows == 4
    assert b"turnpike_engine_unreachable{" in get(deployment.base + "/metrics")[1]
