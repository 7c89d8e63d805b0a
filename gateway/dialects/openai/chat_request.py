"""POST /v1/chat/completions: OpenAI's JSON to a `GenerationRequest`.

Source: https://platform.openai.com/docs/api-reference/chat/create. Unknown fields are ignored. Fields that are known,
would change the answer and are not supported are refused (`unsupported_fields`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct
from msgspec.structs import replace

from gateway.dialects.json_objects import JsonObjects
from gateway.dialects.json_paths import decode
from gateway.dialects.large_bodies import check_large_body
from gateway.dialects.openai.cache_fields import (
    CacheControl,
    ExplicitBreakpoint,
    MarkableTool,
    Marked,
    parse_directives,
)
from gateway.dialects.openai.common_request import (
    CompletionFields,
    Integer64,
    TopLogprobs,
    parse_common,
    parse_streaming,
    prewarming,
    reasoning_of,
)
from gateway.dialects.openai.tools import (
    CallId,
    ChatTool,
    ChatToolChoice,
    FunctionTool,
    MessageToolCall,
    read_calls,
    read_choice,
    read_tools,
)
from gateway.dialects.openai.unsupported_fields import Refused, reject_unsupported
from gateway.errors import InvalidField
from gateway.generation_request import Effort, GenerationRequest, ReasoningWish, Text, ToolCall, Turn

NoCall: TypeAlias = Annotated[
    Raw, Meta(description="Not supported: calls are refused.", extra_json_schema={"type": "null"})
]


class MarkablePart(Struct, frozen=True, kw_only=True):
    """What may say that the prompt is to be cached up to its end."""

    prompt_cache_breakpoint: ExplicitBreakpoint | None = None
    cache_control: CacheControl | None = None


class TextPart(MarkablePart, frozen=True, tag="text", tag_field="type"):
    text: str


class RefusalPart(MarkablePart, frozen=True, tag="refusal", tag_field="type"):
    refusal: str


class ImagePart(Struct, frozen=True, tag="image_url", tag_field="type"):
    """Not supported: refused."""


class AudioPart(Struct, frozen=True, tag="input_audio", tag_field="type"):
    """Not supported: refused."""


class FilePart(Struct, frozen=True, tag="file", tag_field="type"):
    """Not supported: refused."""


ContentPart: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | FilePart
Content: TypeAlias = str | list[ContentPart]
_UNSUPPORTED_PARTS = {ImagePart: "images", AudioPart: "audio", FilePart: "files"}


class SystemMessage(MarkablePart, frozen=True, tag="system", tag_field="role"):
    content: Content


class DeveloperMessage(MarkablePart, frozen=True, tag="developer", tag_field="role"):
    content: Content


class UserMessage(MarkablePart, frozen=True, tag="user", tag_field="role"):
    content: Content


class AssistantMessage(MarkablePart, frozen=True, tag="assistant", tag_field="role"):
    """An earlier answer. `reasoning_content`, as answers have it, is given to the model as its template wants it."""

    content: Content | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    function_call: NoCall | None = None


class ToolMessage(MarkablePart, frozen=True, tag="tool", tag_field="role"):
    """What a tool answered."""

    content: Content
    tool_call_id: CallId


class FunctionMessage(Struct, frozen=True, tag="function", tag_field="role"):
    """Not supported: refused."""


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class Thinking(Struct, frozen=True):
    """SGLang's: whether to reason before the answer. A model without reasoning passes over it."""

    type: Literal["enabled", "adaptive", "auto", "disabled"]


class PredictedText(Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class Prediction(Struct, frozen=True, tag="content", tag_field="type"):
    """What the client expects the answer to be, such as the file that it wants to have changed."""

    content: str | list[PredictedText]


class ChatRequest(CompletionFields, frozen=True, kw_only=True):
    """The fields that are read or refused."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Integer64 | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[ChatTool] | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking: Thinking | None = None
    prediction: Prediction | None = None

    echo: Refused = UNSET
    add_special_tokens: Refused = UNSET


class ChatCall(Struct, frozen=True):
    """A parsed request: what to generate, and how to respond."""

    generation: GenerationRequest
    stream: bool
    include_usage: bool


_decoder = msgspec.json.Decoder(ChatRequest)


def parse(body: bytes) -> ChatCall:
    """Parse a body. Raises InvalidRequest with the JSON path of what is wrong."""
    check_large_body(body)
    request = decode(_decoder, body)
    reject_unsupported(request, ("echo", "add_special_tokens"))
    stream, include_usage = parse_streaming(request)
    if request.top_logprobs and not request.logprobs:
        raise InvalidField("$.top_logprobs", "it needs $.logprobs to be true")
    limit = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    objects = JsonObjects()
    tools = read_tools(request.tools or (), objects)
    reader = _Reader(objects)
    turns = tuple(reader.turn(message, f"$.messages[{index}]") for index, message in enumerate(request.messages))
    reader.check_answered()
    generation = GenerationRequest(
        surface="openai",
        model=request.model,
        turns=turns,
        turns_path="$.messages",
        tools=tools,
        tool_choice=read_choice(request.tool_choice, tools, parallel=request.parallel_tool_calls),
        reasoning=_reasoning(request),
        max_tokens=getattr(request, limit),
        max_tokens_path=f"$.{limit}",
        **parse_common(request),
        choices=request.n or 1,
        prediction=_predicted(request.prediction),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        cache=parse_directives(request, _marked(request, turns, body), request.metadata),
    )
    return ChatCall(generation if not generation.cache.prewarm else prewarming(generation), stream, include_usage)


def _predicted(prediction: Prediction | None) -> str:
    content = () if prediction is None else prediction.content
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _reasoning(request: ChatRequest) -> ReasoningWish:
    wish = reasoning_of(request.reasoning_effort)
    return wish if request.thinking is None else replace(wish, enabled=request.thinking.type != "disabled")


def _marked(request: ChatRequest, turns: Sequence[Turn], body: bytes) -> list[Marked]:
    """The tools, parts and messages that are marked. A message is marked at its last part; a tool itself, or within its
    function, as clients send either."""
    marked: list[Marked] = []
    if b"cache" not in body and b"\\u" not in body:  # no marker's name stands there, nor may be written otherwise
        return marked
    for index, tool in enumerate(request.tools or ()):
        if isinstance(tool, FunctionTool):
            at = f"$.tools[{index}]"
            markable: tuple[tuple[str, MarkableTool], ...] = (at, tool), (f"{at}.function", tool.function)
            marked += (Marked(at, place, part) for place, part in markable if part.cache_control)
    for index, (message, turn) in enumerate(zip(request.messages, turns, strict=True)):
        at = f"$.messages[{index}]"
        parts = message.content if isinstance(message, MarkablePart) else None
        if isinstance(parts, list):
            said = [text for text in turn.texts if text.kind in ("text", "tool_result")]
            for number, (part, text) in enumerate(zip(parts, said, strict=True)):
                if isinstance(part, MarkablePart) and (part.prompt_cache_breakpoint or part.cache_control):
                    marked.append(Marked(text.path, f"{at}.content[{number}]", part))
        if isinstance(message, MarkablePart) and (message.prompt_cache_breakpoint or message.cache_control):
            marked.append(Marked(turn.texts[-1].path, at, message))
    return marked


def _unsupported(path: str, feature: str) -> InvalidField:
    return InvalidField(path, f"{feature} are not supported", code="unsupported_parameter")


class _Reader:
    """Makes turns of messages. A call that was not cut off must be answered by one tool message before anything else is
    said."""

    def __init__(self, objects: JsonObjects) -> None:
        self._objects = objects
        self._open: dict[str, ToolCall] = {}
        """The calls that no result has answered yet."""

    def turn(self, message: Message, path: str) -> Turn:
        """The turn of a message. Raises InvalidRequest naming the path."""
        if isinstance(message, ToolMessage):
            return self._result(message, path)
        self.check_answered()
        match message:
            case SystemMessage():
                return Turn("system", _texts(message.content, f"{path}.content"))
            case DeveloperMessage():
                return Turn("developer", _texts(message.content, f"{path}.content"))
            case UserMessage():
                return Turn("user", _texts(message.content, f"{path}.content"))
            case AssistantMessage():
                calls = read_calls(message.tool_calls or (), f"{path}.tool_calls", self._objects)
                self._open = {call.id: call for call in calls}
                if len(self._open) < len(calls):
                    raise InvalidField(f"{path}.tool_calls", "two calls have the same id")
                said = _assistant(message, path, calls=bool(calls))
                thought = message.reasoning_content
                reasoning = (Text(thought, f"{path}.reasoning_content", "thinking"),) if thought else ()
                return Turn("assistant", (*reasoning, *said, *calls))
        raise _unsupported(f"{path}.role", "function messages")

    def check_answered(self) -> None:
        """Raise InvalidRequest where a call has no result that needs one."""
        for id_, call in self._open.items():
            if not call.readable:
                raise InvalidField(call.path, f"no tool message with tool_call_id {id_[:80]!r} follows")
        self._open = {}

    def _result(self, message: ToolMessage, path: str) -> Turn:
        call = self._open.pop(message.tool_call_id, None)
        if call is None:
            known = "there is no such call in the message before, or it was answered already"
            raise InvalidField(f"{path}.tool_call_id", known)
        texts = tuple(replace(text, kind="tool_result") for text in _texts(message.content, f"{path}.content"))
        return Turn("tool", texts, call.id, call.name)


def _assistant(message: AssistantMessage, path: str, *, calls: bool) -> tuple[Text, ...]:
    if message.function_call is not None and bytes(message.function_call) != b"null":
        raise _unsupported(f"{path}.function_call", "function calls")
    if message.content is not None and (message.content or not calls):
        return _texts(message.content, f"{path}.content")
    if calls:
        return ()
    if message.refusal is not None:
        return (Text(message.refusal, f"{path}.refusal"),)
    return (Text("", f"{path}.content"),)  # an answer that said nothing


def _texts(content: Content, path: str) -> tuple[Text, ...]:
    if isinstance(content, str):
        return (Text(content, path),)
    if not content:
        raise InvalidField(path, "the list of parts is empty")
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, TextPart):
            texts.append(Text(part.text, f"{path}[{index}].text"))
        elif isinstance(part, RefusalPart):
            texts.append(Text(part.refusal, f"{path}[{index}].refusal"))
        else:
            raise _unsupported(f"{path}[{index}]", _UNSUPPORTED_PARTS[type(part)])
    return tuple(texts)
