"""The share of prompt tokens that is read from the cache with one replica and with two, and how evenly two are used.

`python -m benchmarks.replica_cache --conversations 8 --json OUT` starts a gateway with one replica and then one with
two, on a PostgreSQL and a Redis of their own, and holds the same conversations with each: so many at once, of several
turns, with a system prompt that all share. Routing passes if two replicas reach 0.97 of one replica's share and their
prompt tokens differ by at most 20 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from benchmarks.slot_fairness import several_replicas
from tests.e2e.processes import get

BAR_SHARE, BAR_USE = 0.97, 1.2
_WORDS = (
    *("module", "function", "returns", "the", "list", "of", "names", "in", "order", "and", "raises", "an", "error"),
    *("when", "a", "value", "is", "not", "there"),
)
_TOKENS = re.compile(
    rb'^turnpike_engine_(?:computed|read)_tokens_total\{[^}]*replica="([^"]+)"[^}]*\} ([0-9.e+]+)', re.M
)


def words(rng: random.Random, count: int) -> str:
    """A text of so many words."""
    return " ".join(rng.choice(_WORDS) for _ in range(count))


async def converse(client: httpx.AsyncClient, model: str, system: str, rng: random.Random, turns: int) -> list[int]:
    """Hold one conversation; returns its prompt tokens and those of them that were cached."""
    messages = [{"role": "system", "content": system}]
    prompt = cached = 0
    for _ in range(turns):
        messages.append({"role": "user", "content": words(rng, rng.randint(40, 160))})
        body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
        answer = await client.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        told = answer.json()
        prompt += told["usage"]["prompt_tokens"]
        cached += told["usage"]["prompt_tokens_details"]["cached_tokens"]
        messages.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})
    return [prompt, cached]


async def measure(base: str, key: str, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """The hit share of all conversations, and the prompt tokens of each replica."""
    rng = random.Random(options.seed)
    system = words(rng, 400)
    headers = {"Authorization": f"Bearer {key}"}
    totals = [0, 0]
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=120) as client:
        for _ in range(options.rounds):
            talks = [
                converse(client, model, system, random.Random(rng.random()), options.turns)
                for _ in range(options.conversations)
            ]
            for counted in await asyncio.gather(*talks):
                totals = [total + more for total, more in zip(totals, counted, strict=True)]
    await asyncio.sleep(2.5)  # replicas tell their figures once a second
    used: dict[str, float] = {}
    for replica, tokens in _TOKENS.findall(get(base + "/metrics")[1]):
        used[replica.decode()] = used.get(replica.decode(), 0.0) + float(tokens)
    return {"hit_share": totals[1] / totals[0], "prompt_tokens": totals[0], "by_replica": used}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replica_cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--conversations", type=int, default=8, help="conversations at once")
    parser.add_argument("--turns", type=int, default=8, help="turns of each")
    parser.add_argument("--rounds", type=int, default=4, help="how often so many conversations are held")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures: dict[str, Any] = {"benchmark": "replica_cache", "conversations": options.conversations}
    for replicas in (1, 2):
        with (
            tempfile.TemporaryDirectory(prefix="turnpike-replicas-") as folder,
            several_replicas(Path(folder), replicas) as (base, keys, model),
        ):
            figures[f"replicas_{replicas}"] = asyncio.run(measure(base, keys[0], model, options))
    one, two = figures["replicas_1"], figures["replicas_2"]
    share = two["hit_share"] / one["hit_share"]
    used = max(two["by_replica"].values()) / min(two["by_replica"].values())
    figures |= {
        "share_of_one": {"value": round(share, 4), "bar": BAR_SHARE, "met": share >= BAR_SHARE},
        "use": {"value": round(used, 3), "bar": BAR_USE, "met": len(two["by_replica"]) == 2 and used <= BAR_USE},
    }
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["share_of_one"]["met"] and figures["use"]["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
