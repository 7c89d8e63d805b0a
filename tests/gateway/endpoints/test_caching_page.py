"""docs/caching.md says what the rule sets say, and its examples run."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from billing.prices import PriceCatalog
from prompt_cache.promise.rule_sets import RULE_SETS, RuleSet
from storage.database.database import Database
from tests.gateway.endpoints.test_prompt_cache import LEASED
from tests.gateway.stack import running_stack

PAGE = Path(__file__).resolve().parents[3] / "docs" / "caching.md"
SAID = {"refuse": "refused", "latest": "the latest count", "lengthen": "the earlier lives as long"}


def found_at(rules: RuleSet) -> str:
    places = []
    if rules.lookback:
        places.append(f"{rules.lookback} positions back from each breakpoint, its own among them")
    if rules.first_markers:
        places.append(f"the first {rules.first_markers} and latest {rules.latest_markers} marked")
    if rules.earlier_messages:
        places.append(f"the ends of the last message and of {rules.earlier_messages} before it")
    if rules.opening:
        places.append("the end of the opening system messages")
    return ", ".join(places) or "no leases"


def test_the_table_of_rule_sets_is_the_data() -> None:
    rows = [
        (
            f"`{rules.name}`",
            " ".join(f"`{lease}`" for lease in rules.leases) or "none",
            str(rules.most_breakpoints),
            SAID[rules.too_many],
            SAID[rules.shorter_first],
            found_at(rules),
        )
        for rules in RULE_SETS
    ]
    table = PAGE.read_text().split("<!-- rule sets -->\n")[1].split("\n\n")[0].splitlines()[2:]
    assert table == [f"| {' | '.join(row)} |" for row in rows]


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text().replace("stdlib-qa", "tiny"), re.DOTALL)


async def test_the_examples_run(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await Database.open(stocked_sqlite_url)
    await PriceCatalog(database).set("tiny", "USD", LEASED)
    await database.close()
    (tmp_path / "manual.txt").write_text("Remove any common leading whitespace from every line in text.")
    (tmp_path / "handbook.txt").write_text("Wrap a single paragraph of text, and return a list of its lines. " * 2)
    monkeypatch.chdir(tmp_path)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        stack.say("ok")
        variables = {
            "OPENAI_BASE_URL": f"{stack.base}/v1", "OPENAI_API_KEY": stack.key, "ANTHROPIC_BASE_URL": stack.base,
            "ANTHROPIC_API_KEY": stack.key, "TURNPIKE": stack.base, "KEY": stack.key,
        }  # fmt: skip
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        openai_code, anthropic_code = examples("python")
        openais, anthropics = [await asyncio.to_thread(run, code) for code in (openai_code, anthropic_code)]
        assert openais["first"].cache_write_tokens == openais["second"].cached_tokens > 0
        first, second = anthropics["first"], anthropics["second"]
        assert first.cache_read_input_tokens == 0, "its text is its own"
        assert first.cache_creation_input_tokens == second.cache_read_input_tokens > 0
        again = await asyncio.to_thread(run, anthropic_code.replace("handbook.txt", "manual.txt"))
        assert again["first"].cache_read_input_tokens == openais["second"].cached_tokens, "it is one cache"
        if shutil.which("curl"):
            (script,) = examples("sh")
            shell = await asyncio.create_subprocess_exec(
                "sh", "-ec", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            said, problems = await shell.communicate()
            assert shell.returncode == 0, problems
            assert b"cache-status: turnpike; fwd=uri-miss; stored; ttl=1" in said.lower()
            assert b'"object":"cache"' in said


def run(code: str) -> dict[str, Any]:
    """What the names of an example are after it."""
    names: dict[str, Any] = {}
    exec(code, names)  # it is our own page
    return names
