"""POST /v1/completions: OpenAI's JSON to `GenerationRequest`s, one for each prompt (texts or token ids).

Source: https://platform.openai.com/docs/api-reference/completions/create.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.dialects.json_paths import decode
from gateway.dialects.large_bodies import check_large_body
from gateway.dialects.openai.cache_fields import parse_directives
from gateway.dialects.openai.common_request import (
    ChoiceCount,
    CompletionFields,
    TokenId,
    TopLogprobs,
    parse_common,
    parse_streaming,
    prewarming,
)
from gateway.dialects.openai.unsupported_fields import reject_unsupported
from gateway.errors import InvalidField
from gateway.generation_request import GenerationRequest
from protocol.requests import MOST_CHOICES
from storage.free_text import counted

_MAX_TOKENS = 16
"""OpenAI's default."""
Prompt: TypeAlias = str | tuple[int, ...]


_Texts = Annotated[list[str], Meta(min_length=1)]
_Tokens = Annotated[list[TokenId], Meta(min_length=1)]
_TokenLists = Annotated[list[_Tokens], Meta(min_length=1)]
PromptField: TypeAlias = Annotated[
    Raw,
    Meta(
        description="A text, token ids, a list of texts, or a list of lists of token ids.",
        extra_json_schema={"anyOf": [msgspec.json.schema(kind) for kind in (str, _Tokens, _Texts, _TokenLists)]},
        examples=["Once upon a time"],
    ),
]


AddSpecialTokens: TypeAlias = Annotated[
    bool | None, Meta(description="Whether a text begins with the tokenizer's opening tokens, such as BOS: once.")
]


class CompletionRequest(CompletionFields, frozen=True, kw_only=True):
    """The fields that are read or refused."""

    prompt: PromptField
    best_of: ChoiceCount | None = None
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    add_special_tokens: AddSpecialTokens = True
    suffix: str | None = None


class CompletionCall(Struct, frozen=True):
    """A parsed request: what to generate for each prompt, and how to respond."""

    generations: tuple[GenerationRequest, ...]
    stream: bool
    include_usage: bool


_decoder = msgspec.json.Decoder(CompletionRequest)
_text_decoder = msgspec.json.Decoder(str)
_texts_decoder = msgspec.json.Decoder(_Texts)
_tokens_decoder: msgspec.json.Decoder[list[int]] = msgspec.json.Decoder(_Tokens)
_token_lists_decoder = msgspec.json.Decoder(_TokenLists)


def parse(body: bytes) -> CompletionCall:
    """Parse a body. Raises InvalidRequest with the JSON path of what is wrong."""
    check_large_body(body)
    request = decode(_decoder, body)
    reject_unsupported(request)
    (stream, include_usage), choices = parse_streaming(request), request.n or 1
    if request.best_of is not None and request.best_of != choices:
        problem = f"it must be equal to $.n, which is {choices}, because answers are not ranked"
        raise InvalidField("$.best_of", problem, code="unsupported_value")
    if request.suffix:
        raise InvalidField("$.suffix", "it is not supported", code="unsupported_parameter")
    prompts = _prompts(bytes(request.prompt))
    if len(prompts) * choices > MOST_CHOICES:
        total = f"{counted(len(prompts), 'prompt')} with {counted(choices, 'choice')} each"
        raise InvalidField("$.prompt", f"{total} exceed the limit of {MOST_CHOICES} choices")
    several, cache = len(prompts) > 1, parse_directives(request, metadata=request.metadata)
    generations = tuple(
        GenerationRequest(
            surface="openai",
            model=request.model,
            turns=(),
            turns_path=f"$.prompt[{index}]" if several else "$.prompt",
            prompt=prompt,
            max_tokens=_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
            **parse_common(request),
            choices=choices,
            logprobs=request.logprobs,
            echo=bool(request.echo),
            add_special_tokens=request.add_special_tokens is not False,
            cache=cache,
        )
        for index, prompt in enumerate(prompts)
    )
    if cache.prewarm:
        generations = tuple(map(prewarming, generations))
    return CompletionCall(generations, stream, include_usage)


def _prompts(raw: bytes) -> list[Prompt]:
    """A text, token ids, a list of texts, or a list of lists of token ids, told apart by the first characters."""
    prompt = raw.lstrip(b" \t\r\n")
    if not prompt.startswith(b"["):
        return [decode(_text_decoder, raw, at="$.prompt")]
    first = prompt[1:].lstrip(b" \t\r\n")[:1]
    if first == b'"':
        return [*decode(_texts_decoder, raw, at="$.prompt")]
    if first == b"[":
        return [tuple(tokens) for tokens in decode(_token_lists_decoder, raw, at="$.prompt")]
    tokens: list[int] = decode(_tokens_decoder, raw, at="$.prompt")
    return [tuple(tokens)]
