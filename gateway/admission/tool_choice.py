"""What the client's choice of tools makes of a request: a grammar, or a marker that the model may not write.

Neither touches the prompt, so its prefix stays the same whatever may be called.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec.structs import replace

from gateway.conversation.output.call_grammars import NoCallGrammar, call_grammar, free_call_grammar
from gateway.conversation.output.output_formats import OUTPUT_FORMATS
from gateway.errors import InvalidField
from gateway.generation_request import GenerationRequest, Grammar, Tool
from gateway.served_models.served_model import ServedModel
from protocol.grammar_limits import MAX_SCHEMA_BYTES, GrammarTooLarge, check_grammar

_NEVER = -100.0
_OWN_FORM = "<function="
"""In the template of models that write a call's arguments as XML: what they are trained for is better than our JSON."""


def apply_tool_choice(model: ServedModel, generation: GenerationRequest) -> GenerationRequest:
    """The request with what its tool choice means for this model. Raises InvalidField."""
    choice = generation.tool_choice
    if not generation.tools:
        return generation
    if choice.mode == "auto":
        return _armed(model, generation)
    if choice.mode == "none":
        trigger = OUTPUT_FORMATS[model.output_format].trigger
        ids = model.tokenizer.ids_of([trigger] if trigger else [])
        return replace(generation, logit_bias=generation.logit_bias | dict.fromkeys(ids, _NEVER))
    if generation.continued:
        raise InvalidField(choice.path, "an answer that must call tools cannot go on from a turn of the assistant's")
    callable_tools = _callable(generation)
    if sum(len(tool.schema) for tool in callable_tools) > MAX_SCHEMA_BYTES:
        raise InvalidField(
            "$.tools", f"schemas of tools that must be called may have {MAX_SCHEMA_BYTES} characters together"
        )
    try:
        body = call_grammar(model.output_format, callable_tools, choice, model.tokenizer.marker_texts)
        check_grammar("calls", body)
    except NoCallGrammar:
        raise InvalidField(
            choice.path,
            f"the model {model.name} cannot be made to call tools; use 'auto'",
            code="unsupported_parameter",
        ) from None
    except GrammarTooLarge as error:
        raise InvalidField(choice.path, str(error)) from error
    # The answer is calls alone: a format and stop strings say something of texts.
    return replace(generation, grammar=_calls(body, callable_tools), stop=(), stop_tokens=())


def _callable(generation: GenerationRequest) -> list[Tool]:
    names = generation.tool_choice.names
    return [tool for tool in generation.tools if names is None or tool.name in names]


def _armed(model: ServedModel, generation: GenerationRequest) -> GenerationRequest:
    """The request with a grammar for the calls that its answer may make. Where another field decides over the output's
    end, or the model writes calls in a form of its own or without a marker, it stays as it is."""
    decided = generation.grammar or generation.stop or generation.stop_tokens or generation.continued
    if decided or generation.min_tokens or generation.ignore_end or _OWN_FORM in model.template.source:
        return generation
    tools = _callable(generation)
    if sum(len(tool.schema) for tool in tools) > MAX_SCHEMA_BYTES:
        return generation
    body = free_call_grammar(model.output_format, tools, generation.tool_choice, model.tokenizer.marker_texts)
    if body is None:
        return generation
    try:
        check_grammar("calls", body)
    except GrammarTooLarge:
        return generation
    return replace(generation, grammar=_calls(body, tools, free=True))


def _calls(body: dict[str, object], tools: Sequence[Tool], *, free: bool = False) -> Grammar:
    text = json.dumps({"calls": body}, ensure_ascii=False)
    return Grammar(text, "$.tools", free=free, calls=True, tool_paths=tuple(tool.path for tool in tools))
