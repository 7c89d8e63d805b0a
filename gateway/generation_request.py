"""`GenerationRequest`: our one internal request. Every dialect parses into it; nothing after it knows a wire format."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from protocol.requests import Lane

Role = Literal["system", "developer", "user", "assistant"]
Surface = Literal["openai", "anthropic"]


class Text(Struct, frozen=True):
    """A piece of text that the client wrote, and where in the request's JSON it stands."""

    text: str
    path: str


class Turn(Struct, frozen=True):
    """One message of the conversation."""

    role: Role
    texts: tuple[Text, ...]


class Grammar(Struct, frozen=True):
    """What the output must fulfil, as the protocol's `Generate.grammar` says it, and where the client said so."""

    text: str
    path: str


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """What to generate: conversation and sampling. None means that the client did not say.

    `max_tokens_path` is the field that bounded the output, for messages about it. `flow` hints and limits come from the
    principal, never from here.
    """

    surface: Surface
    model: str
    turns: tuple[Turn, ...]
    turns_path: str
    max_tokens: int | None = None
    max_tokens_path: str = "$.max_tokens"
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
    grammar: Grammar | None = None
    prompt: str | tuple[int, ...] | None = None
    """Instead of turns: text, or token ids, that the model is to go on from."""
    tag: str = ""
    """What the client calls this request, for budgets of its own."""
    choices: int = 1
    """How many answers are drawn."""
    logprobs: int | None = None
    """Tell the log probability of each output token, and of so many likeliest ones beside it."""
    echo: bool = False
    """The answer begins with the prompt, and so do its log probabilities."""
