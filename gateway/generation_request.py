"""The one internal form of a generation request: every dialect parses into it; nothing behind knows a wire format."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from protocol.requests import Lane

Role = Literal["system", "developer", "user", "assistant"]
Surface = Literal["openai", "anthropic"]


class Text(Struct, frozen=True):
    """A piece of text that the client wrote, and its path in the request's JSON."""

    text: str
    path: str


class Turn(Struct, frozen=True):
    """One message of the conversation."""

    role: Role
    texts: tuple[Text, ...]


class Grammar(Struct, frozen=True):
    """What the output must match, as in the protocol's `Generate.grammar`, and the path of the field that said so."""

    text: str
    path: str


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """What to generate: conversation and sampling. None means that the client did not say.

    `turns_path` and `max_tokens_path` are the JSON paths of the fields that said so, for error messages.
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
    """Instead of turns: the text, or token ids, that the model continues."""
    tag: str = ""
    """The client's label for this request, which budgets may be set for."""
    choices: int = 1
    """How many outputs are generated for the one prompt."""
    logprobs: int | None = None
    """Return the log probability of each output token, and of so many likeliest tokens in its place."""
    echo: bool = False
    """The answer begins with the prompt, and so do its log probabilities."""
