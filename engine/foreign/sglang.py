"""SGLang, by its native route `/generate` (docs.sglang.ai, "SGLang Native APIs"), with token ids in and out.

A stream's `output_ids` are all tokens so far, or the new ones where the server streams incrementally: both are read.
"""

from __future__ import annotations

import json
import re
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


class SGLang:
    """`extra_key` keeps projects apart in its cache."""

    kind = "sglang"
    shares = True
    counts_last = False

    async def probe(self, http: httpx.AsyncClient) -> EngineFacts:
        """By `/get_server_info`."""
        info = await get_json(http, "/get_server_info")
        context = info.get("context_length") or info.get("max_req_input_len")
        if not isinstance(context, int):
            raise ForeignError("/get_server_info: no context_length: is this SGLang's server?")
        running = info.get("max_running_requests")
        name = f"sglang {info.get('version', '')} {info.get('model_path', '')}"
        return EngineFacts(name, context, running if isinstance(running, int) else 0)

    async def tokenize(self, http: httpx.AsyncClient, text: str) -> list[int]:
        """By `/tokenize`."""
        answer = await post_json(http, "/tokenize", {"prompt": text, "add_special_tokens": False})
        return list(answer["tokens"])

    def check(self, request: ForeignRequest) -> None:
        """Grammars in forms that it has no name for are refused."""
        refuse_unknown_counts(request.sampling)
        if request.sampling.logit_bias:
            raise Unsupported("sampling.logit_bias: SGLang's native route does not take token ids there")
        _structure(request.grammar)

    def written(self, request: ForeignRequest) -> tuple[str, Mapping[str, Any]]:
        """A prompt alone is asked for with no new tokens."""
        sampling = request.sampling
        parameters: dict[str, Any] = {
            "max_new_tokens": request.max_tokens,
            "min_new_tokens": sampling.min_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "sampling_seed": sampling.seed & 0x7FFF_FFFF,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "stop_token_ids": list(sampling.stop_tokens),
            **_structure(request.grammar),
        }
        body: dict[str, Any] = {
            "rid": request.id,
            "input_ids": list(request.tokens),
            "sampling_params": parameters,
            "stream": True,
            "extra_key": request.salt or request.id,
        }
        if sampling.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": sampling.logprobs, "logprob_start_len": -1}
        return "/generate", body

    def read(self, event: Mapping[str, Any], request: ForeignRequest, had: int) -> Chunk:
        """`meta_info.completion_tokens` says how many tokens there are so far, and so which of these are new."""
        if "error" in event:
            raise ForeignError(str(event["error"])[:300])
        meta, ids = event["meta_info"], event.get("output_ids") or []
        new = max(0, int(meta["completion_tokens"]) - had)
        if new > len(ids):
            raise ForeignError(f"{new} new tokens are counted and {len(ids)} sent")
        finish = meta.get("finish_reason")
        reason = finish.get("type") if isinstance(finish, dict) else finish
        if reason not in (None, "stop", "length"):
            raise ForeignError(f"it ended by {reason!r}: {finish}"[:300])
        return Chunk(tuple(ids[len(ids) - new :]), _logprobs(meta, new, request), meta.get("cached_tokens"), reason)

    def aborting(self, request: ForeignRequest) -> tuple[str, Mapping[str, Any]]:
        """By its id."""
        return "/abort_request", {"rid": request.id}


def _logprobs(meta: Mapping[str, Any], new: int, request: ForeignRequest) -> tuple[TokenLogprob, ...]:
    if request.sampling.logprobs is None or not new:
        return ()
    own = meta["output_token_logprobs"][-new:]
    top = (meta.get("output_top_logprobs") or [None] * new)[-new:]
    return tuple(
        TokenLogprob(
            max(-9999.0, float(one[0])),
            tuple((int(each[1]), max(-9999.0, float(each[0]))) for each in (likeliest or ())),
        )
        for one, likeliest in zip(own, top, strict=True)
    )


def _structure(text: str | None) -> dict[str, Any]:
    """The sampling parameters that constrain the output. Raises Unsupported."""
    if text is None:
        return {}
    (kind, value), *_ = json.loads(text).items()
    if kind == "json_schema":
        return {"json_schema": json.dumps(value)}
    if kind == "regex":
        return {"regex": value}
    if kind == "choice":
        return {"regex": "|".join(f"({re.escape(each)})" for each in value)}
    if kind == "grammar":
        return {"ebnf": value}
    raise Unsupported(f"grammar: SGLang does not constrain an output by {kind}")
