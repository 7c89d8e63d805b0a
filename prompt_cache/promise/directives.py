"""What a client asked of the cache, made into a plan by the rules of its dialect.

A dialect's markers arrive neutral: a position in the rendered tokens and a class of life. Which of them count, for how
long, and what happens to KV that nobody marked is data: one `RuleSet` per dialect, model family and version. A plan is
made without looking at what is cached, so that it is the same on every gateway and at every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

ReadPolicy = Literal["longest", "marked", "none"]
"""`longest`: any prefix that is there. `marked`: only up to a breakpoint. `none`: compute everything again."""
StorePolicy = Literal["all", "hbm", "none"]
"""What may happen to the KV of the prompt; the words are the protocol's."""
ANY_FAMILY = "*"


class Marker(Struct, frozen=True):
    """The client asked to cache the first `tokens` tokens, for the class `lease` (None: the rule set's default)."""

    tokens: int
    lease: str | None = None


class RuleSet(Struct, frozen=True, kw_only=True):
    """What a dialect promises for a family of models.

    `automatic`: KV that was there counts as read without a lease. `leases`: the classes that a marker may name, the
    first is the default; none: markers are not part of the dialect. `most_breakpoints`: the latest so many count.
    """

    dialect: str
    family: str
    version: int
    automatic: bool
    leases: tuple[str, ...] = ()
    most_breakpoints: int = 0

    @property
    def name(self) -> str:
        """How logs and records name this set."""
        return f"{self.dialect}/{self.family}/{self.version}"


class Breakpoint(Struct, frozen=True):
    """Cache up to `tokens`, and keep the promise of class `lease`."""

    tokens: int
    lease: str


class CachePlan(Struct, frozen=True, kw_only=True):
    """What the cache is to do for one request. Reads shorter than `read_min` tokens are not counted as reads."""

    rules: str
    automatic: bool
    read: ReadPolicy
    store: StorePolicy
    read_min: int
    breakpoints: tuple[Breakpoint, ...] = ()


RULE_SETS = (RuleSet(dialect="openai", family=ANY_FAMILY, version=1, automatic=True),)
"""Newest version last. OpenAI's rule is automatic reuse of the longest prefix; it has no breakpoints yet."""


class DirectiveError(ValueError):
    """A marker that the rule set does not allow; `marker` is its index."""

    def __init__(self, message: str, marker: int) -> None:
        super().__init__(message)
        self.marker = marker


def rules_for(dialect: str, family: str, rule_sets: Sequence[RuleSet] = RULE_SETS) -> RuleSet:
    """The newest rule set of the dialect for this family, else for any family. Raises LookupError."""
    for wanted in (family, ANY_FAMILY):
        found = [rules for rules in rule_sets if rules.dialect == dialect and rules.family == wanted]
        if found:
            return max(found, key=lambda rules: rules.version)
    raise LookupError(f"no cache rules for dialect {dialect!r} and model family {family!r}")


def plan(
    rules: RuleSet,
    markers: Sequence[Marker] = (),
    *,
    prompt_tokens: int,
    read_min: int,
    read: bool = True,
    store: StorePolicy = "all",
) -> CachePlan:
    """The plan for a prompt of `prompt_tokens` tokens.

    Markers outside the prompt or of an unknown class raise DirectiveError; those shorter than `read_min` are dropped,
    since nothing that short is promised; of the rest the latest `most_breakpoints` count, in the order of the prompt.
    """
    wanted: dict[int, str] = {}
    for index, marker in enumerate(markers):
        if not rules.leases:
            raise DirectiveError(f"the rules {rules.name} know no cache markers", index)
        lease = marker.lease or rules.leases[0]
        if lease not in rules.leases:
            raise DirectiveError(f"unknown cache class {lease!r}; known: {', '.join(rules.leases)}", index)
        if not 0 < marker.tokens <= prompt_tokens:
            raise DirectiveError(f"a cache marker at token {marker.tokens} of {prompt_tokens}", index)
        if marker.tokens >= read_min:
            wanted[marker.tokens] = lease
    kept = sorted(wanted)[-rules.most_breakpoints :] if rules.most_breakpoints else []
    policy: ReadPolicy = "none" if not read else "longest" if rules.automatic else "marked"
    return CachePlan(
        rules=rules.name,
        automatic=rules.automatic,
        read=policy,
        store=store,
        read_min=read_min,
        breakpoints=tuple(Breakpoint(tokens, wanted[tokens]) for tokens in kept),
    )
