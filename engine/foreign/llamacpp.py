"""llama.cpp's server, by its own route `/completion` (tools/server/README.md of llama.cpp).

Its cache knows no salt: a prompt is compared with what a slot last had, whoever sent it. So its prompt cache is off,
unless the operator says that one project alone has the server (`--foreign-cache one-project`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from engine.foreign.engine_client import (
    Chunk,
    EngineFacts,
    ForeignError,
    ForeignRequest,
    Unsupported,
    get_json,
    post_json,
    refuse_unknown_counts,
)
from protocol.requests import TokenLogprob


class LlamaCpp:
    """`encode`: the tokens of a text. `caches`: whether the prompt cache may be used, since all requests are of one
    project."""

    kind = "llamacpp"
    counts_last = False

    def __init__(self, encode: Callable[[str], list[int]], *, caches: bool = False) -> None:
        self.shares = caches
        self._encode = encode

    async def probe(self, http: httpx.AsyncClient) -> EngineFacts:
        """Context of a slot, number of slots, model."""
        props = await get_json(http, "/props")
        settings = props.get("default_generation_settings") or {}
        context, slots = settings.get("n_ctx"), props.get("total_slots")
        if not isinstance(context, int) or not isinstance(slots, int):
            raise ForeignError("/props: neither n_ctx nor total_slots: is this llama.cpp's server?")
        return EngineFacts(f"llamacpp {props.get('build_info', '')} {props.get('model_path', '')}", context, slots)

    async def tokenize(self, http: httpx.AsyncClient, text: str) -> list[int]:
        """By `/tokenize`."""
        body = {"content": text, "add_special": False, "parse_special": False}
        answer = await post_json(http, "/tokenize", body)
        return list(answer["tokens"])

    def check(self, request: ForeignRequest) -> None:
        """It cannot keep stop tokens back for a while, and has no regular expressions."""
        refuse_unknown_counts(request.sampling)
        if request.sampling.min_tokens:
            raise Unsupported("sampling.min_tokens: llama.cpp does not know it")
        _grammar(request.grammar)

    def written(self, request: ForeignRequest) -> tuple[str, Mapping[str, Any]]:
        """Every sampler is named: what the server has by default is not ours."""
        sampling = request.sampling
        return "/completion", {
            "prompt": list(request.tokens),
            "n_predict": request.max_tokens,
            "stream": True,
            "return_tokens": True,
            "timings_per_token": True,
            "cache_prompt": bool(self.shares and request.salt),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": sampling.seed & 0x7FFF_FFFF,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repeat_penalty": sampling.repetition_penalty,
            # One window for all penalties there, of what is last: presence and frequency here are of the output alone.
            "repeat_last_n": request.max_tokens
            if sampling.repetition_penalty == 1.0
            else len(request.tokens) + request.max_tokens,
            "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
            "logit_bias": [[token, bias] for token, bias in sampling.logit_bias.items()],
            **({"n_probs": max(1, sampling.logprobs)} if sampling.logprobs is not None else {}),
            **_grammar(request.grammar),
        }

    def read(self, event: Mapping[str, Any], request: ForeignRequest, had: int) -> Chunk:
        """The first event has the timings, and so what was cached; the last has no tokens.

        Where a token ends within a character, the server says nothing until it is whole, and then the last id alone:
        the text is encoded again, and believed if it has as many tokens and ends with this one.
        """
        if "error" in event:
            raise ForeignError(str(event["error"])[:300])
        timings = event.get("timings") or {}
        tokens = tuple(event["tokens"])
        drawn = event["tokens_predicted"] - had
        if request.max_tokens and not event["stop"] and drawn != len(tokens):
            again = tuple(self._encode(event["content"]))
            if len(again) != drawn or again[-1:] != tokens[-1:] or request.sampling.logprobs is not None:
                raise ForeignError(
                    f"{drawn} tokens were drawn and {len(tokens)} sent: it keeps back parts of characters"
                )
            tokens = again
        probabilities = event.get("completion_probabilities") or () if request.sampling.logprobs is not None else ()
        ended = None
        if event["stop"]:
            ended = "length" if event.get("stop_type") == "limit" else "stop"
        return Chunk(
            tokens,
            tuple(_logprob(one, request.sampling.logprobs or 0) for one in probabilities[: len(tokens)]),
            timings.get("cache_n"),
            ended,  # type: ignore[arg-type]  # the two literals above
        )

    def aborting(self, request: ForeignRequest) -> None:
        """Closing the stream ends it."""


def _logprob(one: Mapping[str, Any], top: int) -> TokenLogprob:
    likeliest = tuple((int(each["id"]), _bounded(each["logprob"])) for each in one["top_logprobs"][:top])
    return TokenLogprob(_bounded(one["logprob"]), likeliest)


def _bounded(logprob: float | None) -> float:
    return -9999.0 if logprob is None else max(-9999.0, float(logprob))


def _grammar(text: str | None) -> dict[str, Any]:
    """The fields that constrain the output. Raises Unsupported."""
    if text is None:
        return {}
    (kind, value), *_ = json.loads(text).items()
    if kind == "json_schema":
        return {"json_schema": value}
    if kind == "choice":
        return {"grammar": "root ::= " + " | ".join(json.dumps(each, ensure_ascii=False) for each in value)}
    if kind == "grammar" and "::=" in value:
        return {"grammar": value}
    raise Unsupported(f"grammar: llama.cpp constrains an output by JSON schema, choice or GBNF, not by {kind}")
