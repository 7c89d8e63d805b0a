"""The one internal form of a generation request: every dialect parses into it; nothing behind knows a wire format."""

from __future__ import annotations

import json
from typing import Literal

from msgspec import Struct

from protocol.requests import Lane, StorePolicy

Role = Literal["system", "developer", "user", "assistant", "tool"]
Dialect = Literal["openai", "anthropic"]
"""A vendor's wire format. Stored rows and the admin API call a request's dialect its `surface`."""
TextKind = Literal["text", "tool_use", "tool_result", "thinking"]


class Text(Struct, frozen=True):
    """A piece of text that the client wrote, its path in the request's JSON, and the kind of block that it is."""

    text: str
    path: str
    kind: TextKind = "text"


class ToolCall(Text, frozen=True, kw_only=True):
    """A call of a tool in an earlier answer. `text` is the JSON object of its arguments.

    Where a limit cut the call off, or the model wrote no object, `text` is what it wrote, and `readable` the JSON of
    the object that can be read of it. Such a call may stay without a result: nobody can make it.
    """

    id: str
    name: str
    readable: str = ""
    kind: TextKind = "tool_use"


class Turn(Struct, frozen=True):
    """One message of the conversation. What a tool answered is a turn of its own, of the role `tool`.

    `call`: the id of the call that it answers, `call_name` the tool's name, `call_failed`: whether the tool failed.
    """

    role: Role
    texts: tuple[Text, ...]
    call: str = ""
    call_name: str = ""
    call_failed: bool = False


class Tool(Struct, frozen=True):
    """A tool that the model is told of. `schema`: the JSON schema of its arguments, as JSON text. `strict`: arguments
    fulfil all of it also where the model is free to call, or the request is refused."""

    name: str
    description: str | None
    schema: str
    path: str
    strict: bool = False


class ToolChoice(Struct, frozen=True):
    """Whether and which tools may be called. `required`: the answer is calls alone. `names`: only these; None: any.
    `parallel`: more than one call in an answer. `path`: of the field that says so."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    parallel: bool = True
    path: str = "$.tool_choice"


class Grammar(Struct, frozen=True):
    """What the output must match, as in the protocol's `Generate.grammar`, and the path of the field that said so.
    `free`: text may end anywhere, so the answer needs no limit of its own. `calls`: it has the family's own form of
    calls, markers included. `tool_paths`: of the tools whose schemas it has, in their order."""

    text: str
    path: str
    free: bool = False
    calls: bool = False
    tool_paths: tuple[str, ...] = ()


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningWish(Struct, frozen=True):
    """What the client says of reasoning before the answer. `enabled`: whether there is to be any; None: as the model
    does. `budget`: its tokens. `path`: of the field that demands it, if a model that cannot keep it is to refuse it."""

    enabled: bool | None = None
    effort: Effort | None = None
    budget: int | None = None
    path: str | None = None


class CacheMarker(Struct, frozen=True):
    """The client asks to cache the prompt up to the end of the piece at `path` (a `Text.path`, or a tool's).

    `lease`: the class that it names, None for the rule set's default. `marker_path`: where it says so, for errors.
    """

    path: str
    marker_path: str
    lease: str | None = None


def tag_of(text: str) -> str:
    """A client's label as databases can keep it: PostgreSQL's texts have no NUL."""
    return text.replace("\0", "\ufffd")


def partition_of(key: str | None, salt: str | None, extra: str | None = None) -> str:
    """The partition of a project's cache for a key and salts; any others have another one."""
    return json.dumps([key or "", salt, extra]) if salt or extra else key or ""


class CacheDirectives(Struct, frozen=True, kw_only=True):
    """What the client says about the prompt cache, in the words of no vendor. `prompt_cache.promise.directives` makes a
    plan of it.

    `automatic`: the rules may add a breakpoint of their own, of the class `automatic_lease` (None: the default).
    `read`, `store`: as in the plan. `only_if_cached`: fail rather than compute what is not cached. `max_age`: ignore
    leases older than so many seconds. `partition`: a client's string that splits the cache further. `tags`: labels by
    which entries can be purged. `compare_with`: say in the response why the prompt missed, also against the response or
    request of this id, if it is not empty; None: the client did not ask.
    """

    markers: tuple[CacheMarker, ...] = ()
    automatic: bool = False
    automatic_lease: str | None = None
    automatic_path: str = "$"
    read: bool = True
    store: StorePolicy = "all"
    only_if_cached: bool = False
    max_age: int | None = None
    partition: str = ""
    prewarm: bool = False
    tags: tuple[str, ...] = ()
    compare_with: str | None = None


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """What to generate: conversation and sampling. None means that the client did not say.

    `turns_path` and `max_tokens_path` are the JSON paths of the fields that said so, for error messages.
    """

    surface: Dialect
    model: str
    turns: tuple[Turn, ...]
    turns_path: str
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    reasoning: ReasoningWish = ReasoningWish()
    continued: bool = False
    """The answer goes on where the last turn, the model's own, ends."""
    max_tokens: int | None = None
    max_tokens_path: str = "$.max_tokens"
    fill_context: bool = False
    """A `max_tokens` above the room that is left in the context ends there, instead of being refused."""
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_end: bool = False
    """Go on after the model's own end tokens."""
    min_tokens: int = 0
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] = {}
    lane: Lane = "standard"
    first_attempt: int = 1
    """The number of its first attempt at a replica: another one where a request that has usage is run again."""
    grammar: Grammar | None = None
    prompt: str | tuple[int, ...] | None = None
    """Instead of turns: the text, or token ids, that the model continues."""
    add_special_tokens: bool = True
    """Whether the text begins with the tokenizer's opening tokens, such as BOS."""
    max_cost_pico: int | None = None
    """Refuse the request if it could cost more, in pico-units of its price's currency; `max_cost_path` said so."""
    max_cost_path: str = "$.max_cost"
    tag: str = ""
    """The client's label for this request, which budgets may be set for."""
    choices: int = 1
    """How many outputs are generated for the one prompt."""
    speculation: bool = True
    """Whether replicas may verify drafts for it; the output is the same."""
    prediction: str = ""
    """What the client expects the output to be."""
    logprobs: int | None = None
    """Return the log probability of each output token, and of so many likeliest tokens in its place."""
    cache: CacheDirectives = CacheDirectives()
    echo: bool = False
    """The answer begins with the prompt, and so do its log probabilities."""
