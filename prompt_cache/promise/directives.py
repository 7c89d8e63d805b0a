"""Makes a request's cache plan from the client's cache markers and the rules of its dialect.

Markers are the same for all dialects: a position in the rendered tokens and a lease class. Which markers count, for how
long, and what happens to unmarked KV is data: a `RuleSet` per dialect, model family and version. A plan does not depend
on what is cached, so it is the same on every gateway and at every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from protocol.requests import StorePolicy

ReadPolicy = Literal["longest", "marked", "none"]
"""`longest`: any cached prefix. `marked`: only up to a breakpoint. `none`: compute everything."""
ANY_FAMILY = "*"


class Marker(Struct, frozen=True):
    """The client asks to cache the first `tokens` tokens, for the class `lease` (None: the rule set's default)."""

    tokens: int
    lease: str | None = None


class RuleSet(Struct, frozen=True, kw_only=True):
    """The cache rules of a dialect for a model family.

    `automatic`: cached KV counts as read without a lease. `leases`: the classes that a marker may name, the default
    first; empty if the dialect has no markers. `most_breakpoints`: how many markers count, the last ones of the prompt.
    """

    dialect: str
    family: str
    version: int
    automatic: bool
    leases: tuple[str, ...] = ()
    most_breakpoints: int = 0

    @property
    def name(self) -> str:
        """The name of this rule set in logs and records."""
        return f"{self.dialect}/{self.family}/{self.version}"


class Breakpoint(Struct, frozen=True):
    """Cache the first `tokens` tokens, with a lease of class `lease`."""

    tokens: int
    lease: str


class CachePlan(Struct, frozen=True, kw_only=True):
    """What the cache does for one request. Reads shorter than `read_min` tokens are not counted as reads.

    `breakpoints`: where leases are written, from the shortest prefix to the longest; a class is never longer than the
    one before it. `lookups`: lengths in tokens of the prefixes of which an earlier lease may be read, from the longest
    to the shortest. Both are empty for a request that needs no lease. `only_if_cached`: fail unless a lease is read.
    `max_age`: ignore leases written more than so many seconds ago.
    """

    rules: str
    automatic: bool
    read: ReadPolicy
    store: StorePolicy
    read_min: int
    breakpoints: tuple[Breakpoint, ...] = ()
    lookups: tuple[int, ...] = ()
    only_if_cached: bool = False
    max_age: int | None = None


RULE_SETS = (RuleSet(dialect="openai", family=ANY_FAMILY, version=1, automatic=True),)
"""The newest version last. OpenAI's rule is automatic reuse of the longest prefix, without breakpoints."""


class DirectiveError(ValueError):
    """The rule set does not allow a marker; `marker` is its index."""

    def __init__(self, message: str, marker: int) -> None:
        super().__init__(message)
        self.marker = marker


def rules_for(dialect: str, family: str, rule_sets: Sequence[RuleSet] = RULE_SETS) -> RuleSet:
    """The newest rule set of the dialect for this family, else for any family. Raises LookupError."""
    for name in (family, ANY_FAMILY):
        matching = [rules for rules in rule_sets if rules.dialect == dialect and rules.family == name]
        if matching:
            return max(matching, key=lambda rules: rules.version)
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

    Markers before `read_min` tokens are dropped, since nothing that short is promised. Of the rest the last
    `most_breakpoints` count. Raises DirectiveError for a marker outside the prompt or of an unknown class.
    """
    leases: dict[int, str] = {}
    for index, marker in enumerate(markers):
        if not rules.leases:
            raise DirectiveError(f"the rules {rules.name} know no cache markers", index)
        lease = marker.lease or rules.leases[0]
        if lease not in rules.leases:
            raise DirectiveError(f"unknown cache class {lease!r}; known: {', '.join(rules.leases)}", index)
        if not 0 < marker.tokens <= prompt_tokens:
            raise DirectiveError(f"a cache marker at token {marker.tokens} of {prompt_tokens}", index)
        if marker.tokens >= read_min:
            leases[marker.tokens] = lease
    positions = sorted(leases)[-rules.most_breakpoints :] if rules.most_breakpoints else []
    policy: ReadPolicy = "none" if not read else "longest" if rules.automatic else "marked"
    return CachePlan(
        rules=rules.name,
        automatic=rules.automatic,
        read=policy,
        store=store,
        read_min=read_min,
        breakpoints=tuple(Breakpoint(tokens, leases[tokens]) for tokens in positions),
    )
