"""POST /v1/chat/completions as it comes in: OpenAI's JSON to a Generation.

Unknown fields are ignored; what is known, changes the answer and is not supported is refused by name.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.dialects.json_paths import decode
from gateway.dialects.large_bodies import check_large_body
from gateway.dialects.openai.common_fields import CompletionFields, Tops, Whole, sampling_of, streaming_of
from gateway.errors import InvalidRequest
from gateway.generation_request import GenerationRequest, Text, Turn

# ---------------------------------------------------------------- the wire


class TextPart(Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class RefusalPart(Struct, frozen=True, tag="refusal", tag_field="type"):
    refusal: str


class ImagePart(Struct, frozen=True, tag="image_url", tag_field="type"):
    pass


class AudioPart(Struct, frozen=True, tag="input_audio", tag_field="type"):
    pass


class FilePart(Struct, frozen=True, tag="file", tag_field="type"):
    pass


Part: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | FilePart
Content: TypeAlias = str | list[Part]
_OTHER_PARTS = {ImagePart: "images", AudioPart: "audio", FilePart: "files"}


class SystemMessage(Struct, frozen=True, tag="system", tag_field="role"):
    content: Content


class DeveloperMessage(Struct, frozen=True, tag="developer", tag_field="role"):
    content: Content


class UserMessage(Struct, frozen=True, tag="user", tag_field="role"):
    content: Content


class AssistantMessage(Struct, frozen=True, tag="assistant", tag_field="role"):
    content: Content | None = None
    refusal: str | None = None
    tool_calls: list[Raw] | None = None
    function_call: Raw | None = None


class ToolMessage(Struct, frozen=True, tag="tool", tag_field="role"):
    pass


class FunctionMessage(Struct, frozen=True, tag="function", tag_field="role"):
    pass


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class ChatRequest(CompletionFields, frozen=True, kw_only=True):
    """The fields that we read, and those that we must not overlook."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Tops | None = None


class ChatCall(Struct, frozen=True):
    """A parsed request: what to generate, and how to answer."""

    generation: GenerationRequest
    stream: bool
    include_usage: bool


_decoder = msgspec.json.Decoder(ChatRequest)


def parse(body: bytes) -> ChatCall:
    """The request in our own terms. Raises InvalidRequest with the JSON path of what is wrong."""
    check_large_body(body)
    request = decode(_decoder, body)
    stream, include_usage = streaming_of(request)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest(
            "$.top_logprobs is only for answers with logprobs.", path="$.top_logprobs", code="invalid_value"
        )
    completion = request.max_completion_tokens is not None
    generation = GenerationRequest(
        surface="openai",
        model=request.model,
        turns=tuple(_turn(message, f"$.messages[{index}]") for index, message in enumerate(request.messages)),
        turns_path="$.messages",
        max_tokens=request.max_completion_tokens if completion else request.max_tokens,
        max_tokens_path="$.max_completion_tokens" if completion else "$.max_tokens",
        **sampling_of(request),
        choices=request.n or 1,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )
    return ChatCall(generation, stream, include_usage)


def _unsupported(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: {what} not supported here.", path=path, code="unsupported_parameter")


def _turn(message: Message, path: str) -> Turn:
    match message:
        case SystemMessage():
            return Turn("system", _texts(message.content, f"{path}.content"))
        case DeveloperMessage():
            return Turn("developer", _texts(message.content, f"{path}.content"))
        case UserMessage():
            return Turn("user", _texts(message.content, f"{path}.content"))
        case AssistantMessage():
            return Turn("assistant", _assistant(message, path))
    raise _unsupported(f"{path}.role", "tool messages are")


def _assistant(message: AssistantMessage, path: str) -> tuple[Text, ...]:
    if message.tool_calls:
        raise _unsupported(f"{path}.tool_calls", "tool calls are")
    if message.function_call is not None and bytes(message.function_call) != b"null":
        raise _unsupported(f"{path}.function_call", "function calls are")
    if message.content is not None:
        return _texts(message.content, f"{path}.content")
    if message.refusal is not None:
        return (Text(message.refusal, f"{path}.refusal"),)
    raise InvalidRequest(f"{path}.content is missing.", path=f"{path}.content", code="missing_required_parameter")


def _texts(content: Content, path: str) -> tuple[Text, ...]:
    if isinstance(content, str):
        return (Text(content, path),)
    if not content:
        raise InvalidRequest(f"{path}: an empty list of parts.", path=path, code="invalid_value")
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, TextPart):
            texts.append(Text(part.text, f"{path}[{index}].text"))
        elif isinstance(part, RefusalPart):
            texts.append(Text(part.refusal, f"{path}[{index}].refusal"))
        else:
            raise _unsupported(f"{path}[{index}]", f"{_OTHER_PARTS[type(part)]} are")
    return tuple(texts)
