"""How many held-out questions the demo model answers with the right tool call, through a running gateway.

`python -m benchmarks.tool_calls --base-url http://127.0.0.1:8080/v1 --key KEY --json OUT` asks the questions of
`models/tool-caller/held_out.json` and `held_out_2.json` in chat completions, greedily and with `tool_choice` auto. A
call is right if its name and all of its arguments are; a question that needs none is right without a call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

SETS = [Path("models/tool-caller/held_out.json"), Path("models/tool-caller/held_out_2.json")]
AT_ONCE = 8


async def is_right(client: httpx.AsyncClient, model: str, tools: dict[str, Any], case: dict[str, Any]) -> bool:
    """Ask one question. Raises httpx.HTTPStatusError."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": case["question"]}],
        "tools": [{"type": "function", "function": tools[name]} for name in case["tools"]],
        "temperature": 0,
        "max_tokens": 256,
    }
    answer = await client.post("/chat/completions", json=body)
    answer.raise_for_status()
    calls = [call["function"] for call in answer.json()["choices"][0]["message"].get("tool_calls") or []]
    if "name" not in case:
        return not calls
    try:
        return [call["name"] for call in calls] == [case["name"]] and json.loads(calls[0]["arguments"]) in case[
            "arguments"
        ]
    except ValueError:
        return False


async def measure(options: argparse.Namespace) -> dict[str, str]:
    """`right of all` for each set and kind of question."""
    figures, turn = {}, asyncio.Semaphore(AT_ONCE)
    headers = {"authorization": f"Bearer {options.key}"}
    async with httpx.AsyncClient(base_url=options.base_url, headers=headers, timeout=120) as client:
        for file in options.sets:
            read = json.loads(file.read_text())

            async def one(case: dict[str, Any], tools: dict[str, Any] = read["tools"]) -> bool:
                async with turn:
                    return await is_right(client, options.model, tools, case)

            for kind in ("calls", "no_calls"):
                right = await asyncio.gather(*(one(case) for case in read[kind]))
                figures[f"{file.name} {kind}"] = f"{sum(right)} of {len(right)}"
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1", help="of the gateway (default: %(default)s)")
    parser.add_argument("--key", required=True, help="an API key")
    parser.add_argument("--model", default="tool-caller", help="the served model (default: %(default)s)")
    parser.add_argument("--sets", type=Path, nargs="+", default=SETS, help="files of questions (default: both)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    figures = asyncio.run(measure(options))
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
