"""Checks a gateway's `Generate` and makes it into requests of the scheduler, or says what is wrong with it."""

from __future__ import annotations

import math
import secrets
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from engine.adapters.adapter_store import AdapterStore, InvokedAdapter
from engine.core.parent_request import ParentRequest
from engine.grammar.guide import Grammar, GrammarGuide, Grammars, Guide, InvalidGrammar
from engine.grammar.reasoning_guide import ReasoningGuide
from engine.sampling.counter_random import choice_seed
from engine.sampling.request_state import SamplingState
from engine.sampling.validation import InvalidSampling, check_sampling
from engine.scheduling.request import Request
from engine.scheduling.token_sequence import TokenSequence
from prompt_cache.kv.block_keys import BLOCK_TOKENS, block_key, chain
from protocol.replicas import Scope, owner_of
from protocol.requests import (
    MOST_CHOICES,
    MOST_MARKER_TOKENS,
    MOST_PREDICTION_TOKENS,
    Generate,
    Reasoning,
    Refusal,
)

Segments: TypeAlias = tuple[tuple[int, bytes, str], ...]

_MAX_ID_CHARS, _MAX_CLAIM_BYTES = 256, 64 * 1024
"""Ids and claims go into journal records, which are bounded."""
_MOST_RETAINS = 16
"""More than any client can mark."""


class Rejected(Exception):
    """A request that cannot be run; the message says why and names the field.

    `refusal`: it may be sent again later. `invalid`: the field that the client got wrong, where only the engine can
    tell.
    """

    def __init__(self, message: str, refusal: Refusal | None = None, invalid: str | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.invalid = invalid


class InputProcessor:
    """Checks requests. `room` is how many tokens a prompt and its output may have together; `root` the root of the
    served model's block keys; `clock` the engine's. Unless it `publishes`, all requests are `no-store`.
    `adapters`: those that the replica has; None where it computes none."""

    def __init__(
        self,
        vocabulary: int,
        room: int,
        root: bytes,
        clock: Callable[[], float],
        grammars: Grammars | None,
        *,
        publishes: bool = True,
        adapters: AdapterStore | None = None,
    ) -> None:
        self.publishes = publishes
        self._adapters = adapters
        self._vocabulary = vocabulary
        self._room = room
        self._root = root
        self._clock = clock
        self.grammars = grammars
        self._arrivals = 0

    def room(self, prompt: int) -> int:
        """Output tokens for which context and memory have room after a prompt of this many tokens."""
        return self._room - prompt

    def accept(
        self, generate: Generate, scopes: Mapping[str, Scope], compiled: Grammar | Rejected | None = None
    ) -> ParentRequest:
        """The requests of the scheduler that this asks for. Raises Rejected, naming the field.

        `compiled` is the compiled grammar, or why there is none; with None it is compiled here.
        """
        sampling = generate.sampling
        _check_limits(generate)
        if not generate.tokens:
            raise Rejected("tokens: the prompt is empty")
        vocabulary = self._vocabulary
        for name, tokens in (
            ("tokens", generate.tokens),
            *(("emitted", emitted) for emitted in generate.emitted),
            ("prediction", generate.prediction),
        ):
            if not _are_within(tokens, vocabulary):
                invalid = next(token for token in tokens if not 0 <= token < vocabulary)
                raise Rejected(f"{name}: token id {invalid} is outside the vocabulary of {vocabulary}")
        prompt = len(generate.tokens)
        room = self.room(prompt)
        if room < 1:
            raise Rejected(f"tokens: a prompt of {prompt} tokens leaves no room in a context of {prompt + room}")
        if not 0 <= sampling.max_tokens <= room:  # 0: the prompt is computed and kept, nothing is drawn
            raise Rejected(f"sampling.max_tokens: {sampling.max_tokens} is not within 0..{room}, the room left")
        if not 1 <= generate.choices <= MOST_CHOICES:
            raise Rejected(f"choices: {generate.choices} is not within 1..{MOST_CHOICES}")
        try:
            check_sampling(sampling, vocabulary)
        except InvalidSampling as error:
            raise Rejected(str(error)) from error
        _check_reasoning(generate.reasoning, vocabulary)
        _check_emitted(generate)
        # After its deadline it ends before it begins; its grammar, which may be what took so long, is not needed.
        expired = generate.deadline is not None and generate.deadline <= self._clock()
        grammar = None if generate.grammar is None or expired else self._grammar(generate.grammar, compiled)
        segments = self._segments(generate, scopes)
        if not self.publishes:
            generate = msgspec.structs.replace(generate, store="none")
        private = generate.choices > 1 and generate.store == "none"
        root = block_key(secrets.token_bytes(32), self._root, []) if private else self._root
        adapter = self._adapter(generate)
        members = [
            self._request(generate, choice, segments, root, private=private, adapter=adapter)
            for choice in range(generate.choices)
        ]
        # Beyond the device blocks may go only where all their scopes have a retention (C5).
        lasting = all(scopes[segment.scope].retention > 0 for segment in generate.segments)
        prediction = array("I", generate.prediction)  # one for all: it may be long
        for member in members:
            member.prediction = prediction
            if member.store == "all" and not lasting:
                member.store = "hbm"
            guide = _guide(generate, None if grammar is None else grammar.guide())
            emitted = generate.emitted[member.choice] if generate.emitted else ()
            member.row = SamplingState(member.sampling, generate.tokens, emitted, guide, generate.flow)
        parent = ParentRequest(members, private=private, claim=generate.claim)
        if generate.emitted:
            parent.go_on(generate)
        # The other choices read what the first has computed for them.
        parent.first.read = generate.read and sampling.prompt_logprobs is None
        return parent

    def blocks(self, generate: Generate, scopes: Mapping[str, Scope]) -> list[tuple[str, bytes]]:
        """Scope and key of each block that the prompt may read. Any thread. Raises what a wrong request raises."""
        segments = self._segments(generate, scopes)
        tokens = array("I", generate.tokens + (generate.emitted[0] if generate.emitted else []))
        blocks = (len(tokens) - 1) // BLOCK_TOKENS
        adapter = self._adapter(generate)
        scope_roots = [(until, root) for until, root, _ in segments]
        fork = None if adapter is None else adapter.key_fork
        keys = chain(self._root, scope_roots, tokens[: blocks * BLOCK_TOKENS], fork=fork)
        ends = [until for until, _, _ in segments]
        at = (min(bisect_left(ends, (index + 1) * BLOCK_TOKENS), len(ends) - 1) for index in range(blocks))
        return [(segments[index][2], key) for index, key in zip(at, keys, strict=True)]

    def _grammar(self, text: str, compiled: Grammar | Rejected | None) -> Grammar:
        if isinstance(compiled, Rejected):
            raise compiled
        if compiled is not None:
            return compiled
        if self.grammars is None:
            raise Rejected("grammar: this replica has no grammars")
        try:
            return self.grammars.compiled(text)
        except InvalidGrammar as error:
            raise Rejected(f"grammar: {error}", invalid="grammar") from error

    def _adapter(self, generate: Generate) -> InvokedAdapter | None:
        """The adapter that the request names, and from where on it acts. Raises Rejected."""
        if not generate.adapter:
            return None
        if self._adapters is None:
            raise Rejected("adapter: this replica computes no adapters", invalid="adapter")
        found = self._adapters.find(generate.adapter)
        if found is None:
            if (problem := self._adapters.refusal(generate.adapter)) is not None:
                raise Rejected(f"adapter: {problem}", invalid="adapter")
            # It did not come, or was given up while the request waited; it may be asked for again.
            raise Rejected("adapter: this replica has not got it", Refusal("replica", 0.5))
        found.scopes.add(owner_of(generate.segments[-1].scope))
        start = found.acts_from(generate.tokens)
        if start is None:
            raise Rejected("adapter: the prompt has not the tokens that invoke it", invalid="adapter")
        return InvokedAdapter(found, start)

    def _request(
        self,
        generate: Generate,
        choice: int,
        segments: Segments,
        root: bytes,
        *,
        private: bool,
        adapter: InvokedAdapter | None,
    ) -> Request:
        """One choice. Blocks that it must not leave to others have keys that nobody else can make."""
        sampling = generate.sampling
        if choice:
            sampling = msgspec.structs.replace(sampling, seed=choice_seed(sampling.seed, choice))
        self._arrivals += 1
        emitted = generate.emitted[choice] if generate.emitted else []
        return Request(
            id=generate.id,
            attempt=generate.attempt,
            arrival=self._arrivals,
            tokens=TokenSequence(generate.tokens + emitted),
            prompt=len(generate.tokens) + len(emitted),
            segments=segments,
            root=root,
            sampling=sampling,
            emitted=len(emitted),
            max_output=sampling.max_tokens - len(emitted),
            credit=generate.credit - len(emitted),
            deadline=generate.deadline,
            lane=generate.lane,
            flow=generate.flow,
            sub_flow=generate.sub_flow,
            weight=generate.weight,
            store="hbm" if private else generate.store,
            speculates=generate.speculation != "off",
            retain=tuple((retain.tokens, retain.until) for retain in generate.retain[:_MOST_RETAINS]),
            arrived_at=self._clock(),
            choice=choice,
            input_root=self._root if private else None,
            adapter=None if adapter is None else adapter.adapter,
            adapted_from=0 if adapter is None else adapter.start,
            key_fork=None if adapter is None else adapter.key_fork,
        )

    def _segments(self, generate: Generate, scopes: Mapping[str, Scope]) -> Segments:
        segments, start = [], 0
        for segment in generate.segments:
            scope = scopes.get(segment.scope)
            if scope is None:
                raise Rejected(f"segments: scope {segment.scope!r} was not introduced on this connection")
            if segment.until <= start:
                raise Rejected(f"segments: until {segment.until} does not grow")
            start = segment.until
            segments.append((segment.until, scope.root, owner_of(segment.scope)))
        if start != len(generate.tokens):
            raise Rejected(f"segments: they end at {start}, the prompt at {len(generate.tokens)}")
        return tuple(segments)


def _are_within(tokens: Sequence[int], vocabulary: int) -> bool:
    """Whether all are ids of a vocabulary of this size."""
    if not tokens:
        return True
    try:
        written = array("I", tokens)
    except OverflowError:
        return False
    return int(np.frombuffer(written, np.uint32).max()) < vocabulary


def _guide(generate: Generate, answer: GrammarGuide | None) -> Guide | None:
    """What guides an output: the grammar of its answer, after its reasoning if the request says how that ends."""
    if generate.reasoning is None:
        return answer
    return ReasoningGuide(generate.reasoning, generate.sampling.stop_tokens, answer)


def _check_reasoning(reasoning: Reasoning | None, vocabulary: int) -> None:
    """Check the markers and the budget. Raises Rejected, naming the field."""
    if reasoning is None:
        return
    if not reasoning.end:
        raise Rejected("reasoning.end: it is empty")
    if reasoning.budget is not None and reasoning.budget < 0:
        raise Rejected(f"reasoning.budget: {reasoning.budget} is negative")
    for name in ("end", "begin", "opening", "answer"):
        tokens: tuple[int, ...] = getattr(reasoning, name)
        if len(tokens) > MOST_MARKER_TOKENS:
            raise Rejected(f"reasoning.{name}: {len(tokens)} tokens are more than {MOST_MARKER_TOKENS}")
        invalid = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if invalid is not None:
            raise Rejected(f"reasoning.{name}: token id {invalid} is outside the vocabulary of {vocabulary}")


def _check_emitted(generate: Generate) -> None:
    """Check what an earlier attempt left. Raises Rejected, naming the field."""
    if not generate.emitted:
        return
    if len(generate.emitted) != generate.choices:
        raise Rejected(f"emitted: it is of {len(generate.emitted)} choices, the request has {generate.choices}")
    longest, most = max(map(len, generate.emitted)), generate.sampling.max_tokens
    if longest > most:
        raise Rejected(f"emitted: {longest} tokens are more than sampling.max_tokens, {most}")
    if generate.sampling.prompt_logprobs is not None:
        raise Rejected("emitted: sampling.prompt_logprobs were sent before it")
    if not all(0 <= choice < generate.choices for choice in generate.stopped):
        raise Rejected(f"stopped: {list(generate.stopped)} are not all within 0..{generate.choices - 1}")
    try:
        generate.counted.check()
    except ValueError as error:
        raise Rejected(f"counted: {error}") from error
    if generate.delivered < 0:
        raise Rejected(f"delivered: {generate.delivered} is negative")


def _check_limits(generate: Generate) -> None:
    """Check id, claim, weight, deadline and credit. Raises Rejected, naming the field."""
    if not 1 <= len(generate.id) <= _MAX_ID_CHARS:
        raise Rejected(f"id: {len(generate.id)} characters are not within 1..{_MAX_ID_CHARS}")
    if len(generate.claim) > _MAX_CLAIM_BYTES:
        raise Rejected(f"claim: {len(generate.claim)} bytes are more than {_MAX_CLAIM_BYTES}")
    if generate.weight < 1:
        raise Rejected(f"weight: {generate.weight} is not at least 1")
    if generate.deadline is not None and not math.isfinite(generate.deadline):
        raise Rejected(f"deadline: {generate.deadline} is no time")
    if len(generate.prediction) > MOST_PREDICTION_TOKENS:
        raise Rejected(f"prediction: {len(generate.prediction)} tokens are more than {MOST_PREDICTION_TOKENS}")
    if generate.credit < 0:
        raise Rejected(f"credit: {generate.credit} is negative")
