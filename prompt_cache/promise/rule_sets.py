"""The cache rules of each dialect as data: which markers count, how long a lease lives, where an earlier one is found.

A rule set belongs to a dialect, a model family and a version. The newest version of a family counts; older ones stay,
so that what was promised under them can be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

ANY_FAMILY = "*"


class RuleSet(Struct, frozen=True, kw_only=True):
    """The cache rules of a dialect for a model family.

    A *block* is a piece of content that the client sent; a *position* is where one ends.

    `automatic`: KV that is there counts as read without a lease. `leases`: the classes that a marker may name, the
    default first; empty if the dialect has no markers. `most_breakpoints`: how many breakpoints one request may write;
    `too_many`: what happens to more of them (`latest`: the last ones count). `shorter_first`: what happens to a marker
    of a longer class after one of a shorter class (`lengthen`: the earlier one lives as long, since its tokens do).
    `own_breakpoint`: where the breakpoint lies that the rules add where the client asks for it: at the last block that
    can be cached, which must not be marked otherwise, or at the last message. `refuse_empty`: marking an empty text is
    an error.

    Where an earlier lease may be found: `lookback` positions back from each breakpoint, counting its own; a run of
    tool calls, or of their results, counts as one. The `first_markers` and `latest_markers` markers of the client, and
    the ends of the `earlier_messages` messages before the last. `opening`: the end of the system and developer
    messages with which the prompt begins.
    """

    dialect: str
    family: str = ANY_FAMILY
    version: int
    automatic: bool
    leases: tuple[str, ...] = ()
    most_breakpoints: int = 0
    too_many: Literal["refuse", "latest"] = "refuse"
    shorter_first: Literal["refuse", "lengthen"] = "refuse"
    own_breakpoint: Literal["none", "block", "message"] = "none"
    refuse_empty: bool = False
    lookback: int = 0
    first_markers: int = 0
    latest_markers: int = 0
    earlier_messages: int = 0
    opening: bool = False

    @property
    def name(self) -> str:
        """The name of this rule set in logs and records."""
        return f"{self.dialect}/{self.family}/{self.version}"


RULE_SETS = (
    RuleSet(dialect="openai", version=1, automatic=True),
    RuleSet(
        dialect="openai",
        version=2,
        automatic=True,
        # 24h is what `prompt_cache_retention` asks for; 5m and 1h what `cache_control` does, in any dialect
        leases=("30m", "12h", "24h", "5m", "1h"),
        most_breakpoints=4,
        too_many="latest",
        shorter_first="lengthen",
        own_breakpoint="message",
        first_markers=2,
        latest_markers=50,
        earlier_messages=20,
        opening=True,
    ),
    RuleSet(
        dialect="anthropic",
        version=1,
        automatic=False,
        leases=("5m", "1h"),
        most_breakpoints=4,
        own_breakpoint="block",
        refuse_empty=True,
        lookback=20,
    ),
)
"""OpenAI's first version is automatic reuse alone, its second the rules since 9 July 2026 with ours where they promise
more: the longest cached prefix is still read. Anthropic's are those of both API versions."""


@lru_cache(maxsize=64)
def _newest(dialect: str, family: str, rule_sets: tuple[RuleSet, ...]) -> RuleSet:
    for name in (family, ANY_FAMILY):
        matching = [rules for rules in rule_sets if rules.dialect == dialect and rules.family == name]
        if matching:
            return max(matching, key=lambda rules: rules.version)
    raise LookupError(f"no cache rules for dialect {dialect!r} and model family {family!r}")


def leases_of(dialect: str, rule_sets: Sequence[RuleSet] = RULE_SETS) -> frozenset[str]:
    """The classes that a marker of the dialect may name, for some family; none for a dialect that is not known."""
    return frozenset(lease for rules in rule_sets if rules.dialect == dialect for lease in rules.leases)


def rules_for(dialect: str, family: str, rule_sets: Sequence[RuleSet] = RULE_SETS) -> RuleSet:
    """The newest rule set of the dialect for this family, else for any family. Raises LookupError."""
    return _newest(dialect, family, tuple(rule_sets))
