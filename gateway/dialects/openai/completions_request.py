"""POST /v1/completions as it comes in: text or token ids to go on from, one or several, to Generations."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.dialects.json_paths import decode
from gateway.dialects.large_bodies import check_large_body
from gateway.dialects.openai.common_fields import Choices, CompletionFields, TokenId, Tops, sampling_of, streaming_of
from gateway.errors import InvalidRequest
from gateway.generation_request import GenerationRequest
from protocol.requests import MOST_CHOICES
from storage.free_text import counted

_MAX_TOKENS = 16
"""OpenAI's default."""
Prompt: TypeAlias = str | tuple[int, ...]


class CompletionRequest(CompletionFields, frozen=True, kw_only=True):
    """The fields that we read, and those that we must not overlook."""

    prompt: Raw
    best_of: Choices | None = None
    logprobs: Tops | None = None
    echo: bool | None = None
    suffix: str | None = None


class CompletionCall(Struct, frozen=True):
    """A parsed request: what to generate for each prompt, and how to answer."""

    generations: tuple[GenerationRequest, ...]
    stream: bool
    include_usage: bool


_decoder = msgspec.json.Decoder(CompletionRequest)
_text = msgspec.json.Decoder(str)
_texts = msgspec.json.Decoder(Annotated[list[str], Meta(min_length=1)])
_tokens = msgspec.json.Decoder(Annotated[list[TokenId], Meta(min_length=1)])
_many = msgspec.json.Decoder(Annotated[list[Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)])


def parse(body: bytes) -> CompletionCall:
    """The request in our own terms. Raises InvalidRequest with the JSON path of what is wrong."""
    check_large_body(body)
    request = decode(_decoder, body)
    (stream, include_usage), choices = streaming_of(request), request.n or 1
    if request.best_of is not None and request.best_of != choices:
        raise InvalidRequest(
            f"$.best_of is {request.best_of} where n is {choices}: answers are not ranked here.",
            path="$.best_of",
            code="unsupported_value",
        )
    if request.suffix:
        raise InvalidRequest(
            "$.suffix: text is not filled in between here.", path="$.suffix", code="unsupported_parameter"
        )
    prompts = _prompts(bytes(request.prompt))
    if len(prompts) * choices > MOST_CHOICES:
        raise InvalidRequest(
            f"$.prompt: {counted(len(prompts), 'prompt')} with {counted(choices, 'answer')} each "
            f"make more than {MOST_CHOICES}.",
            path="$.prompt",
            code="invalid_value",
        )
    several = len(prompts) > 1
    generations = tuple(
        GenerationRequest(
            surface="openai",
            model=request.model,
            turns=(),
            turns_path=f"$.prompt[{index}]" if several else "$.prompt",
            prompt=prompt,
            max_tokens=_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
            **sampling_of(request),
            choices=choices,
            logprobs=request.logprobs,
            echo=bool(request.echo),
        )
        for index, prompt in enumerate(prompts)
    )
    return CompletionCall(generations, stream, include_usage)


def _prompts(raw: bytes) -> list[Prompt]:
    """A text, token ids, a list of texts, or a list of lists of token ids: by what comes first."""
    inner = raw.lstrip(b" \t\r\n")
    if not inner.startswith(b"["):
        return [decode(_text, raw, at="$.prompt")]
    first = inner[1:].lstrip(b" \t\r\n")[:1]
    if first == b'"':
        return [*decode(_texts, raw, at="$.prompt")]
    if first == b"[":
        return [tuple(tokens) for tokens in decode(_many, raw, at="$.prompt")]
    return [tuple(decode(_tokens, raw, at="$.prompt"))]
