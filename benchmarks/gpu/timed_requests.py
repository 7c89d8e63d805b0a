"""Workloads as requests to a replica: how their tokens are drawn, and what is seen of them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from protocol.requests import Done, Generate, Sampling, Segment, Tokens

SCOPE = "project"
CREDIT = 1 << 20
Way = Literal["eighth", "grammar", "none", "plain"]
"""Which requests are sampled: an eighth of them with penalties, or under a JSON schema, the others greedy; none; or all
at temperature 1, as chat clients ask by default."""
WAYS: tuple[Way, ...] = ("eighth", "grammar", "none", "plain")
SCHEMA = {
    "type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"],
    "additionalProperties": False,
}  # fmt: skip


def is_of_the_eighth(index: int, count: int) -> bool:
    """Whether it is one of the eighth: of each eight, in turn at another place, since prompts whose numbers are 32
    apart share a prefix."""
    eight = index // 8
    return count >= 8 and index % 8 == (eight + eight // 4) % 8


def grammar(index: int, count: int, way: Way) -> str | None:
    """The grammar of request `index` of `count`, if it has one."""
    return json.dumps({"json_schema": SCHEMA}) if way == "grammar" and is_of_the_eighth(index, count) else None


def sampling(index: int, count: int, tokens: int, way: Way) -> Sampling:
    """How the output of request `index` of `count` is drawn. The same request gives the same tokens in each run."""
    if way == "plain":
        return Sampling(tokens, temperature=1.0, top_p=1.0, seed=index)
    if way == "none" or not is_of_the_eighth(index, count):
        return Sampling(tokens, temperature=0.0)
    if way == "grammar":
        return Sampling(tokens, temperature=0.8, seed=index)
    return Sampling(
        tokens, temperature=0.8, top_p=0.95, seed=index, presence_penalty=0.3, frequency_penalty=0.2
    )  # fmt: skip


class Run:
    """Requests that are sent at once, and what has come of them. Messages may come in another thread."""

    def __init__(self, first: int, prompts: Sequence[list[int]], tokens: int, way: Way) -> None:
        """`first`: the number of the first request; each has a name of its own in its replica."""
        self.requests = [
            Generate(
                f"r{first + index}", 1, (Segment(len(prompt), SCOPE),), prompt,
                sampling(index, len(prompts), tokens, way), credit=CREDIT, flow="flow",
                grammar=grammar(index, len(prompts), way),
            )
            for index, prompt in enumerate(prompts)
        ]  # fmt: skip
        self.outputs: dict[str, list[int]] = {request.id: [] for request in self.requests}
        self._tokens = tokens
        self._read = 0
        self._first: float | None = None
        self.began = time.perf_counter()

    def heard(self, message: Tokens | Done) -> None:
        """Keep what a message says."""
        if message.id not in self.outputs:
            return
        if isinstance(message, Tokens):
            if self._first is None:
                self._first = time.perf_counter()
            self.outputs[message.id] += message.tokens
        else:
            self._read += message.counts.read
            if message.reason not in ("length", "stop", "abort"):
                print("ended", message.id, message.reason, message.error, flush=True)

    def figures(self, took: float, steps: int, *, done: bool) -> dict[str, Any]:
        """What is reported. `done`: whether all have ended by themselves."""
        drawn = sum(map(len, self.outputs.values()))
        prompts = sum(len(request.tokens) for request in self.requests)
        first = float("nan") if self._first is None else self._first - self.began
        found: dict[str, Any] = {
            "s": took, "out_tok_s": drawn / took, "total_tok_s": (drawn + prompts) / took, "first_token_s": first,
            "steps": steps, "read_tok": self._read,
        }  # fmt: skip
        if not done:
            found["stopped"] = True
        # Under a grammar an output may end before its limit.
        free = [len(self.outputs[request.id]) for request in self.requests if request.grammar is None]
        if done and sum(free) != len(free) * self._tokens:
            found["wrong"] = f"{sum(free)} tokens instead of {len(free) * self._tokens}"
        return found


class Driver(Protocol):
    """Runs requests on an engine. `machine` and `torch` are the engine's."""

    way: str
    machine: str
    torch: str
    dtype: str
    outputs: dict[str, list[int]]
    """Of the last run, by request."""
    ready_s: float
    """From the start of the engine's process until it could be asked."""

    def since_start(self) -> float:
        """Seconds since that start."""
        ...

    def run(self, prompts: Sequence[list[int]], tokens: int, limit: float) -> dict[str, Any]:
        """All prompts at once, `tokens` of output each; what it took. They are stopped after `limit` seconds."""
        ...

    def close(self) -> None:
        """End the engine."""
        ...
