"""Time to first token of a long prompt by where its KV lies: `python -m benchmarks.tiers --json OUT`.

`turnpike serve` runs the demo model. Each of a few prompts is sent `cold`, `warm` (its KV is in device memory), and
once more `restarted`: after serve, with everything that belongs to it, was stopped and started again, so that its KV
comes from disk. Then serve runs with so little device memory that one prompt drives out another, whose KV comes back
from host memory (`dram`).

Figures are medians in seconds, from sending the request to the first piece of text, and shares of the cold figure. The
text must be the same each time. `read_tokens` are what usage says.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.startup_time import DEMO, Serve, make_key

TOKENS = 6_000
PROMPTS = 3
WARM, RESTARTED = 0.10, 0.25
"""Bars: shares of the cold time to first token."""
SMALL_KV = 80 << 20
DRAM = 256 << 20
SETTLE_S = 3.0
QUESTION = "What does textwrap.dedent do?"


@dataclass
class Answer:
    """One answer, and when its first piece came."""

    first_s: float
    text: str
    prompt: int
    read: int


def ask(serve: Serve, key: str, system: str) -> Answer:
    """Ask the question behind a long system prompt."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]
    body = {
        "model": DEMO.name,
        "messages": messages,
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{serve.base}/v1/chat/completions", json.dumps(body).encode(), headers)
    first, text, usage = 0.0, "", {}
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                if piece := choice["delta"].get("content"):
                    first = first or time.perf_counter() - began
                    text += piece
    read = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Answer(first, text, usage["prompt_tokens"], read)


def system_prompt(tokens: int, seed: int) -> str:
    """Words that the model's tokenizer makes about so many tokens of."""
    pick = random.Random(seed)
    words = ("list", "string", "file", "path", "value", "return", "name", "type", "number", "default")
    return f"Prompt {seed}. " + " ".join(pick.choice(words) for _ in range(tokens))


def fitting_prompt(tokens: int, seed: int) -> str:
    """A system prompt of at most `tokens` tokens by the model's own tokenizer, and nearly so many."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    text = system_prompt(tokens, seed)
    encoded = tokenizer.encode(text, add_special_tokens=False)
    if len(encoded.ids) > tokens:
        text = text[: encoded.offsets[tokens - 1][1]]
    return text


def started(data: Path, arguments: list[str]) -> Serve:
    """Start serve and wait until it is ready."""
    serve = Serve(DEMO, data, arguments)
    serve.wait("/readyz")
    return serve


def warmed(serve: Serve, key: str) -> None:
    """Let whatever is done once be done."""
    for number in range(2):
        ask(serve, key, system_prompt(100, 1000 + number))


def survive_a_restart(data: Path, prompts: list[str]) -> dict[str, list[Answer]]:
    """Each prompt cold, warm, and after a restart."""
    found: dict[str, list[Answer]] = {}
    serve = started(data, [])
    try:
        key = make_key(data)
        warmed(serve, key)
        found["cold"] = [ask(serve, key, prompt) for prompt in prompts]
        found["warm"] = [ask(serve, key, prompt) for prompt in prompts]
        time.sleep(SETTLE_S)  # for the disk tier, as between a client's turns
    finally:
        serve.stop()
    serve = started(data, [])
    try:
        warmed(serve, key)
        found["restarted"] = [ask(serve, key, prompt) for prompt in prompts]
    finally:
        serve.stop()
    return found


def come_back_from_dram(data: Path, prompts: list[str]) -> dict[str, list[Answer]]:
    """Each prompt after others have driven it out of the device's memory."""
    serve = started(data, ["--kv-memory", str(SMALL_KV), "--dram-memory", str(DRAM), "--disk-memory", "0"])
    try:
        key = make_key(data)
        warmed(serve, key)
        cold = [ask(serve, key, prompt) for prompt in prompts]
        return {"dram_cold": cold, "dram": [ask(serve, key, prompt) for prompt in prompts]}
    finally:
        serve.stop()


def measure(tokens: int, count: int) -> dict[str, Any]:
    """All figures."""
    prompts = [fitting_prompt(tokens, seed) for seed in range(count)]
    with tempfile.TemporaryDirectory(prefix="turnpike-tiers-") as folder:
        found = survive_a_restart(Path(folder) / "disk", prompts)
        found |= come_back_from_dram(Path(folder) / "dram", prompts)
    figures: dict[str, Any] = {"benchmark": "tiers", "prompt_tokens": [answer.prompt for answer in found["cold"]]}
    for name, answers in found.items():
        cold = found["dram_cold" if name.startswith("dram") else "cold"]
        first_s = statistics.median(answer.first_s for answer in answers)
        figures[name] = {
            "first_token_s": round(first_s, 3),
            "of_cold": round(first_s / statistics.median(answer.first_s for answer in cold), 3),
            "read_tokens": [answer.read for answer in answers],
            "each_s": [round(answer.first_s, 3) for answer in answers],
        }
    texts = [[answer.text for answer in answers] for answers in found.values()]
    figures["same_text"] = all(each == texts[0] for each in texts)
    figures["met"] = (
        figures["same_text"] and figures["warm"]["of_cold"] <= WARM and figures["restarted"]["of_cold"] <= RESTARTED
    )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of the system prompt")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures = measure(options.tokens, options.prompts)
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
