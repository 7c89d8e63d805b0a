"""A served model as the gateway knows it: tokenizer, chat template, limits and sampling defaults; not its weights."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from gateway.conversation.chat_template import ChatTemplate, TemplateError
from gateway.conversation.detokenizer import Detokenizer, detokenizer_for
from gateway.conversation.output.events import OutputParser
from gateway.conversation.output.output_formats import OUTPUT_FORMATS, ReasoningMarkers, detect_output_format
from gateway.conversation.prompt import Prompt, Span, check_length, make_prompt
from gateway.conversation.reasoning import has_begun, reasoning_of, template_variables
from gateway.conversation.tokenizer import Tokenizer, TokenizerError
from gateway.generation_request import GenerationRequest, ReasoningWish, Tool, Turn
from model_files.context_length import context_length
from model_files.gguf_values import GgufError
from model_files.model_documents import is_document, own_name, read_document, written_at
from prompt_cache.model_digest import text_digest
from protocol.requests import Reasoning
from storage.reported_error import ReportedError

DEFAULT_MIN_CACHEABLE = 1024
DEFAULT_CONTEXT_TOKENS = {  # a new family needs a line: the gateway does not import the engine's table
    "deepseek_v2": 2048,
    "deepseek_v3": 4096,
    "gemma": 8192,
    "gemma2": 8192,
    "gemma3": 131_072,
    "gemma3_text": 131_072,
    "glm4": 131_072,
    "glm4_moe": 131_072,
    "gpt_oss": 131_072,
    "granite": 2048,
    "kimi_k2": 4096,
    "llama": 2048,
    "mistral": 131_072,
    "mistral3": 131_072,
    "mixtral": 131_072,
    "olmo2": 2048,
    "phi": 2048,
    "phi3": 4096,
    "qwen2": 32_768,
    "qwen2_5_vl": 32_768,
    "qwen2_5_vl_text": 32_768,
    "qwen2_moe": 32_768,
    "qwen3": 32_768,
    "qwen3_moe": 32_768,
    "qwen3_vl": 128_000,
    "qwen3_vl_text": 128_000,
    "seed_oss": 524_288,
    "smollm3": 32_768,
    "starcoder2": 4096,
}
"""`model_type` -> the context in tokens if the configuration does not say it; the engine uses the same."""
Value = TypeVar("Value", int, str)
_NO_WISH = ReasoningWish()


class ModelFolderError(ReportedError):
    """A model folder cannot be served. The message names the file."""


class SamplingDefaults(Struct, frozen=True):
    """The model's `generation_config.json`: sampling values for requests that do not give them."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class ServedAdapter(Struct, frozen=True):
    """An adapter of a project: its name behind the model's, its digest, when it was made, in seconds, and its name to
    replicas."""

    name: str
    digest: str
    created: int
    wire_name: str


class ServedModel(Struct, frozen=True, kw_only=True):
    """One model. `created`: the time of its configuration file, in seconds since the Unix epoch."""

    name: str
    folder: Path
    family: str
    text_digest: str
    context_tokens: int
    min_cacheable_tokens: int
    stop_tokens: tuple[int, ...]
    defaults: SamplingDefaults
    created: int
    tokenizer: Tokenizer
    template: ChatTemplate
    output_format: str
    """How the model writes reasoning and calls: a key of `OUTPUT_FORMATS`."""
    adapter: ServedAdapter | None = None
    """What changes it for one request."""

    @property
    def names(self) -> tuple[str, str]:
        """Its name, and the digest of what makes tokens of text, and of the adapter: what leases are found by."""
        digest = self.text_digest if self.adapter is None else f"{self.text_digest}/{self.adapter.digest}"
        return self.name, digest

    @property
    def full_name(self) -> str:
        """Its name with that of its adapter: what it is asked for, billed and reported under."""
        return self.name if self.adapter is None else f"{self.name}:{self.adapter.name}"

    def prompt(
        self,
        turns: tuple[Turn, ...],
        tools: tuple[Tool, ...] = (),
        *,
        continued: bool = False,
        reasoning: ReasoningWish = _NO_WISH,
    ) -> Prompt:
        """The conversation as tokens and spans; `continued`: up to the end of the last turn, with which the model goes
        on. Raises ConversationRefused, PromptTooLong."""
        return make_prompt(
            turns,
            self.template,
            self.tokenizer,
            self.context_tokens,
            tools,
            continued=continued,
            variables=template_variables(reasoning, self.template.reasoning_variables),
        )

    def continued(self, text: str, path: str, *, opened: bool = True) -> Prompt:
        """A text to continue, as tokens. Special tokens are recognised in it, since no template is used.

        `opened`: it begins with the tokens that the tokenizer puts before a text, once, as where the text has them.
        Raises PromptTooLong.
        """
        check_length(len(text), self.tokenizer, self.context_tokens)
        tokens, opening = self.tokenizer.literal(text), self.tokenizer.opening
        if opened and tokens[: len(opening)] != opening:
            tokens = opening + tokens
        return Prompt(tokens, (Span(path, 0, len(tokens)),))

    def output_parser(self, generation: GenerationRequest, prompt: Sequence[int]) -> OutputParser | None:
        """What reads one output: a new parser, if the request has tools that may be called or the model reasons."""
        calls = bool(generation.tools) and generation.tool_choice.mode != "none"
        if not calls and (not self.template.reasons or generation.prompt is not None):
            return None
        written, plain = OUTPUT_FORMATS[self.output_format], OUTPUT_FORMATS["none"]
        made = written.parser if calls or written.reasoning != plain.reasoning else plain.parser
        parser = made(
            self.tokenizer.ids_of(made.markers()),
            partial(_schema_of, generation.tools if calls else ()),
            reasons=self._reasons(generation, prompt),
        )
        allowed = generation.tool_choice.names
        parser.log.only_calls = calls and generation.tool_choice.mode == "required"
        parser.log.names = frozenset(tool.name for tool in generation.tools) if allowed is None else frozenset(allowed)
        return parser

    def _reasons(self, generation: GenerationRequest, prompt: Sequence[int]) -> bool | None:
        """Whether an output begins within reasoning; None where none is marked in it: the model knows no markers, or a
        grammar holds the output from its beginning, since no token ends the reasoning."""
        grammar = generation.grammar
        if not self._ends_reasoning and ((grammar is not None and not grammar.free) or not self.template.reasons):
            return None
        begun = has_begun(self._markers, self.tokenizer, prompt, continued=generation.continued)
        return self.template.reasons and begun

    @property
    def keeps_budgets(self) -> bool:
        """Whether the model reasons, and the replica can end it: by a marker that is one token."""
        return self.template.reasons and self._ends_reasoning

    @property
    def _ends_reasoning(self) -> bool:
        return bool(self.tokenizer.ids_of([self._markers.end]))

    @property
    def _markers(self) -> ReasoningMarkers:
        return OUTPUT_FORMATS[self.output_format].reasoning

    def reasoning(self, generation: GenerationRequest, prompt: Sequence[int]) -> Reasoning | None:
        """What the replica is told of the output's reasoning, if anything."""
        if not self.template.reasons and not (generation.grammar is not None and generation.grammar.free):
            return None
        return reasoning_of(generation, self.template.reasoning_variables, self._markers, self.tokenizer, prompt)

    def detokenizer(self, after: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for one output. `after`: the tokens that its text continues, if any."""
        return detokenizer_for(self.tokenizer, after)


def load_served_model(folder: Path) -> ServedModel:
    """Read a Hugging Face model folder, with its `turnpike.toml` if there is one, or a GGUF file. Raises
    ModelFolderError."""
    try:
        return _load(folder)
    except (TokenizerError, TemplateError, GgufError) as error:
        raise ModelFolderError(str(error)) from error


def _load(folder: Path) -> ServedModel:
    if not folder.exists():
        raise ModelFolderError(f"{folder}: there is no such model folder")
    config = _json(folder / "config.json", needed=True)
    if isinstance(config.get("text_config"), dict):  # a multimodal model: only its language part is served
        config |= config["text_config"]
    generation = _json(folder / "generation_config.json", needed=False)
    settings = _toml(folder / "turnpike.toml")
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    template = ChatTemplate.load(folder, tokenizer.special_texts)
    model_type = config.get("model_type")
    context = config.get("max_position_embeddings", DEFAULT_CONTEXT_TOKENS.get(str(model_type)))
    if context is None and model_type not in DEFAULT_CONTEXT_TOKENS:  # other families may give the context elsewhere
        supported = ", ".join(sorted(DEFAULT_CONTEXT_TOKENS))
        raise ModelFolderError(
            f"{folder / 'config.json'}: model_type {model_type!r} is not supported (supported: {supported})"
        )
    if not isinstance(context, int) or context < 2:
        raise ModelFolderError(
            f"{folder / 'config.json'}: max_position_embeddings is {context!r}, not a number of tokens above 1"
        )
    return ServedModel(
        name=_turnpike_setting(settings, folder, "name", own_name(folder)),
        folder=folder,
        family=str(config.get("model_type", "")),
        text_digest=text_digest(folder),
        context_tokens=context_length(context, config, _json(folder / "tokenizer_config.json", needed=False)),
        min_cacheable_tokens=_turnpike_setting(settings, folder, "min_cacheable_tokens", DEFAULT_MIN_CACHEABLE),
        stop_tokens=_stop_tokens(generation, config, tokenizer, template.special_tokens.get("eos_token")),
        defaults=_defaults(generation),
        created=written_at(folder),
        tokenizer=tokenizer,
        template=template,
        output_format=_output_format(settings, folder, template, tokenizer),
    )


def _json(path: Path, *, needed: bool) -> dict[str, Any]:
    if not needed and not is_document(path):
        return {}
    try:
        content = json.loads(read_document(path))
    except OSError as error:
        raise ModelFolderError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelFolderError(f"{path} is not a JSON object")
    return content


def _toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFolderError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelFolderError(f"{path} is not TOML: {error}") from error


def _turnpike_setting(settings: dict[str, Any], folder: Path, name: str, default: Value) -> Value:
    value = settings.get(name, default)
    if type(value) is not type(default) or not value:
        raise ModelFolderError(f"{folder / 'turnpike.toml'}: {name} is {value!r}")
    return value


def _schema_of(tools: Sequence[Tool], name: str) -> dict[str, Any]:
    """The schema of the tool of this name, read only when a call needs it: tools may be large, and choices many."""
    schema = next((tool.schema for tool in tools if tool.name == name), "{}")
    parsed: dict[str, Any] = json.loads(schema)
    return parsed


def _output_format(settings: dict[str, Any], folder: Path, template: ChatTemplate, tokenizer: Tokenizer) -> str:
    name = _turnpike_setting(
        settings, folder, "output_format", detect_output_format(template.source, tokenizer.special_texts)
    )
    if name not in OUTPUT_FORMATS:
        raise ModelFolderError(
            f"{folder / 'turnpike.toml'}: output_format is {name!r}, not one of {', '.join(OUTPUT_FORMATS)}"
        )
    return name


def _stop_tokens(
    generation: dict[str, Any], config: dict[str, Any], tokenizer: Tokenizer, end: str | None
) -> tuple[int, ...]:
    """The end tokens of the generation config, else of the model config, and `end`, the tokenizer's own: whichever of
    them the model was trained to write, an answer ends with it.

    Ids outside the vocabulary are dropped: configurations inherit such defaults from their class.
    """
    configured = config.get("vocab_size")
    vocabulary = configured if isinstance(configured, int) else tokenizer.size
    value = generation.get("eos_token_id")
    if value is None:
        value = config.get("eos_token_id")
    tokens = [*(value if isinstance(value, list) else [value]), *tokenizer.ids_of([] if end is None else [end])]
    return tuple(dict.fromkeys(token for token in tokens if type(token) is int and 0 <= token < vocabulary))


def _defaults(generation: dict[str, Any]) -> SamplingDefaults:
    numbers = {
        name: type(default)(value)
        for name, default in msgspec.structs.asdict(SamplingDefaults()).items()
        if isinstance(value := generation.get(name), int | float) and not isinstance(value, bool)
    }
    if generation.get("do_sample") is False:
        numbers["temperature"] = 0.0
    return SamplingDefaults(**numbers)
