"""What a foreign engine is to us: how a request is written for it, and what it says of one.

A client holds no state of a request. `streams.py` sends what it writes and reads what comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import httpx

from protocol.requests import Sampling, TokenLogprob

Ended = Literal["stop", "length"]
PROBE_S = 10.0
"""Seconds that an engine may take to say what it is."""


class ForeignError(Exception):
    """The engine answered what it should not, or not at all. The message says what."""


class Unsupported(Exception):
    """The request asks for what the engine cannot do. The message names the field."""


@dataclass(frozen=True)
class EngineFacts:
    """What an engine says of itself."""

    name: str
    """Its kind, version and model, for logs and the model's digest."""
    context_tokens: int
    """Tokens of a prompt and its output together."""
    running: int
    """Requests that it computes at once; 0 if it does not say."""


@dataclass(frozen=True)
class ForeignRequest:
    """One choice of a request, as an engine is to run it. `tokens`: prompt, and what was put out before."""

    id: str
    tokens: Sequence[int]
    sampling: Sampling
    max_tokens: int
    salt: str
    """Prompts under different salts must not share KV. Empty: nothing of it may be shared at all."""
    grammar: str | None = None


@dataclass(frozen=True)
class Chunk:
    """A piece of an engine's stream. `tokens`: new ones. `cached`: prompt tokens whose KV it had; None where it does
    not say. `ended`: why there are no more."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    cached: int | None = None
    ended: Ended | None = None

    def split(self, tokens: int) -> tuple[Chunk, Chunk]:
        """The first so many tokens, and the rest, which ends as this does."""
        return (
            Chunk(self.tokens[:tokens], self.logprobs[:tokens], self.cached),
            Chunk(self.tokens[tokens:], self.logprobs[tokens:], None, self.ended),
        )


class EngineClient(Protocol):
    """A kind of engine. `shares`: whether its cache keeps prompts of different salts apart. `counts_last`: whether what
    was cached is told behind the end."""

    kind: str
    shares: bool
    counts_last: bool

    async def probe(self, http: httpx.AsyncClient) -> EngineFacts:
        """What the engine is. Raises ForeignError, httpx.HTTPError."""

    async def tokenize(self, http: httpx.AsyncClient, text: str) -> list[int]:
        """The text's tokens by the engine's tokenizer, special tokens neither added nor parsed. Raises as `probe`."""

    def check(self, request: ForeignRequest) -> None:
        """Raise Unsupported if the engine cannot run it as it is meant."""

    def written(self, request: ForeignRequest) -> tuple[str, Mapping[str, Any]]:
        """Path and JSON body that ask for a stream of its tokens."""

    def read(self, event: Mapping[str, Any], request: ForeignRequest, had: int) -> Chunk:
        """One event of that stream; `had`: how many tokens came before. Raises ForeignError, KeyError, TypeError."""

    def aborting(self, request: ForeignRequest) -> tuple[str, Mapping[str, Any]] | None:
        """What to post to end a request, beside closing its stream; None where closing does."""


async def get_json(http: httpx.AsyncClient, path: str) -> Any:
    """The JSON behind a path. Raises ForeignError, httpx.HTTPError."""
    return _json(await http.get(path, timeout=PROBE_S))


async def post_json(http: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> Any:
    """The JSON that a path answers to this body. Raises ForeignError, httpx.HTTPError."""
    return _json(await http.post(path, json=body, timeout=PROBE_S))


def _json(answer: httpx.Response) -> Any:
    if answer.status_code != httpx.codes.OK:
        raise ForeignError(f"{answer.request.url.path}: status {answer.status_code}: {answer.text[:200]}")
    try:
        return answer.json()
    except ValueError as error:
        raise ForeignError(f"{answer.request.url.path}: no JSON: {answer.text[:200]}") from error


def salt_of(root: bytes) -> str:
    """The salt of a scope: it says nothing of the root of its block keys."""
    return hashlib.sha256(b"turnpike/foreign-salt/v1" + root).hexdigest()[:32]


def refuse_unknown_counts(sampling: Sampling) -> None:
    """Raise Unsupported for what no foreign engine answers as it is meant here."""
    if sampling.prompt_logprobs is not None:
        raise Unsupported("sampling.prompt_logprobs: a foreign engine does not give them")
