"""vLLM, by its token route `/inference/v1/generate` (vLLM's "disaggregated" API of token ids in and out).

It is to run with `--enable-prompt-tokens-details`; without it nothing counts as read from its cache. Closing a stream
does not always end a request there, so it is aborted by its id as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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

_REASONS = {"stop": "stop", "length": "length"}


class Vllm:
    """`cache_salt` keeps projects apart in its cache."""

    kind = "vllm"
    shares = True
    counts_last = True

    async def probe(self, http: httpx.AsyncClient) -> EngineFacts:
        """By `/v1/models` and `/version`."""
        models = (await get_json(http, "/v1/models"))["data"]
        version = (await get_json(http, "/version"))["version"]
        if not models or not isinstance(models[0].get("max_model_len"), int):
            raise ForeignError("/v1/models: no max_model_len: is this vLLM's server?")
        return EngineFacts(f"vllm {version} {models[0].get('root') or models[0]['id']}", models[0]["max_model_len"], 0)

    async def tokenize(self, http: httpx.AsyncClient, text: str) -> list[int]:
        """By `/tokenize`."""
        answer = await post_json(http, "/tokenize", {"prompt": text, "add_special_tokens": False})
        return list(answer["tokens"])

    def check(self, request: ForeignRequest) -> None:
        """Grammars in forms that it has no name for are refused."""
        refuse_unknown_counts(request.sampling)
        _structure(request.grammar)

    def written(self, request: ForeignRequest) -> tuple[str, Mapping[str, Any]]:
        """`max_tokens` of vLLM is at least 1: where only the prompt is wanted, its one token is dropped."""
        sampling = request.sampling
        parameters: dict[str, Any] = {
            "max_tokens": max(1, request.max_tokens),
            "min_tokens": sampling.min_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": sampling.seed & 0x7FFF_FFFF,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "stop_token_ids": list(sampling.stop_tokens),
            "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
            "logprobs": sampling.logprobs,
            "detokenize": False,
        }
        structure = _structure(request.grammar)
        if structure is not None:
            parameters["structured_outputs"] = structure
        body = {
            "request_id": request.id,
            "token_ids": list(request.tokens),
            "sampling_params": parameters,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": request.salt or request.id,
        }
        return "/inference/v1/generate", body

    def read(self, event: Mapping[str, Any], request: ForeignRequest, had: int) -> Chunk:
        """Tokens of a choice are new ones; usage, where it comes, is that of the whole so far."""
        if "error" in event:
            raise ForeignError(str(event["error"])[:300])
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        choices = event.get("choices") or ()
        if not choices:
            return Chunk(cached=details.get("cached_tokens"))
        choice = choices[0]
        reason = choice.get("finish_reason")
        if reason is not None and reason not in _REASONS:
            raise ForeignError(f"it ended by {reason!r}")
        content = (choice.get("logprobs") or {}).get("content") or ()
        return Chunk(
            tuple(choice.get("token_ids") or ()),
            tuple(_logprob(one, request.sampling.logprobs or 0) for one in content),
            details.get("cached_tokens"),
            None if reason is None else _REASONS[reason],  # type: ignore[arg-type]  # the two above
        )

    def aborting(self, request: ForeignRequest) -> tuple[str, Mapping[str, Any]]:
        """By its id, before which the route puts its own name."""
        return "/inference/v1/abort_requests", {"request_ids": [f"generate-tokens-{request.id}"]}


def _logprob(one: Mapping[str, Any], top: int) -> TokenLogprob:
    # Where text is not wanted, a token has its id, or stands as `token_id:N`.
    likeliest = tuple(
        (int(str(each.get("token_id", each.get("token"))).removeprefix("token_id:")), _bounded(each["logprob"]))
        for each in (one.get("top_logprobs") or ())[:top]
    )
    return TokenLogprob(_bounded(one["logprob"]), likeliest)


def _bounded(logprob: float) -> float:
    return max(-9999.0, float(logprob))


def _structure(text: str | None) -> dict[str, Any] | None:
    """vLLM's `structured_outputs`. Raises Unsupported."""
    if text is None:
        return None
    (kind, value), *_ = json.loads(text).items()
    names = {"json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}
    if kind not in names:
        raise Unsupported(f"grammar: vLLM does not constrain an output by {kind}")
    return {names[kind]: value}
