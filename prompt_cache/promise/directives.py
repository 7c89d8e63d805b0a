"""Makes a request's cache plan from the client's cache markers and the rules of its dialect (`rule_sets`).

Markers are the same for all dialects: a position in the rendered tokens and a lease class. A plan does not depend on
what is cached, so it is the same on every gateway and at every time. Nothing is promised for a prefix shorter than the
model's least cacheable length: its markers are checked, and then dropped without a word.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

from msgspec import Struct

from prompt_cache.promise.rule_sets import RuleSet
from protocol.requests import StorePolicy

ReadPolicy = Literal["longest", "marked", "none"]
"""`longest`: any cached prefix. `marked`: only up to a breakpoint. `none`: compute everything."""
BlockKind = Literal["text", "tool", "tool_use", "tool_result", "thinking"]
_RUNS = ("tool_use", "tool_result")
"""Kinds of which neighbours count as one position."""
_OPENING_ROLES = ("system", "developer")
MOST_LOOKUPS = 256
"""The longest prefixes of which an earlier lease is looked for; no rule set asks for more, but runs have no end."""
_SECONDS = {"m": 60, "h": 3600}


def lifetime(lease: str) -> int:
    """Seconds that a lease of this class lives after it was written or read."""
    return int(lease[:-1]) * _SECONDS[lease[-1]]


class Marker(Struct, frozen=True):
    """The client asks to cache the first `tokens` tokens, for the class `lease` (None: the rule set's default).

    With 0 tokens its place in the prompt is not known: it is checked, and promises nothing.
    """

    tokens: int
    lease: str | None = None


class Block(Struct, frozen=True):
    """A piece of content that ends after `end` tokens, in the message with index `message` (-1: none, as tools have)
    and role `role`."""

    end: int
    message: int
    role: str
    kind: BlockKind = "text"


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


class DirectiveError(ValueError):
    """The rule set does not allow a marker; `marker` is its index, None for the breakpoint that the rules add."""

    def __init__(self, message: str, marker: int | None) -> None:
        super().__init__(message)
        self.marker = marker


def plan(
    rules: RuleSet,
    markers: Sequence[Marker] = (),
    *,
    prompt_tokens: int,
    read_min: int,
    blocks: Sequence[Block] = (),
    automatic: bool = False,
    automatic_lease: str | None = None,
    read: bool = True,
    store: StorePolicy = "all",
    only_if_cached: bool = False,
    max_age: int | None = None,
) -> CachePlan:
    """The plan for a prompt of `prompt_tokens` tokens.

    `blocks`: the prompt's blocks in rendered order; they need not be given if there are neither markers nor `automatic`
    nor `only_if_cached`. `automatic`: the rules add a breakpoint of the class `automatic_lease`. `store`: what is not
    stored everywhere gets no lease. Raises DirectiveError.
    """
    policy: ReadPolicy = "none" if not read else "longest" if rules.automatic else "marked"
    breakpoints: list[Breakpoint] = []
    lookups: tuple[int, ...] = ()
    if markers or automatic or only_if_cached:
        marked = [_breakpoint(rules, index, marker, prompt_tokens) for index, marker in enumerate(markers)]
        own = _own_breakpoint(rules, marked, blocks, automatic_lease) if automatic else None
        breakpoints = _counting(rules, marked, own, read_min)
        if store != "all":  # what may not be kept is not promised either
            breakpoints = []
        if read:
            found = _lookups(rules, marked, own, blocks)
            lookups = tuple(sorted((t for t in found if t >= max(1, read_min)), reverse=True)[:MOST_LOOKUPS])
    return CachePlan(
        rules=rules.name,
        automatic=rules.automatic,
        read=policy,
        store=store,
        read_min=read_min,
        breakpoints=tuple(breakpoints),
        lookups=lookups,
        only_if_cached=only_if_cached,
        max_age=max_age,
    )


# ---------------------------------------------------------------- where leases are written


def _breakpoint(rules: RuleSet, index: int | None, marker: Marker, prompt_tokens: int) -> Breakpoint:
    if not rules.leases:
        raise DirectiveError(f"the rules {rules.name} know no cache markers", index)
    lease = marker.lease or rules.leases[0]
    if lease not in rules.leases:
        raise DirectiveError(f"unknown cache class {lease!r}; known: {', '.join(rules.leases)}", index)
    if not 0 <= marker.tokens <= prompt_tokens:
        raise DirectiveError(f"a cache marker at token {marker.tokens} of {prompt_tokens}", index)
    return Breakpoint(marker.tokens, lease)


def _own_breakpoint(
    rules: RuleSet, marked: Sequence[Breakpoint], blocks: Sequence[Block], lease: str | None
) -> Breakpoint | None:
    """The breakpoint that the rules add: None if there is nothing to cache, or the client marked the same already."""
    if rules.own_breakpoint == "none":
        raise DirectiveError(f"the rules {rules.name} know no automatic caching", None)
    eligible = (block.end for block in reversed(blocks) if block.kind != "thinking")
    end = next(eligible, 0)
    if not end:
        return None
    own = _breakpoint(rules, None, Marker(end, lease), end)
    same = next((other for other in marked if other.tokens == own.tokens), None)
    if same is None:
        return own
    if rules.own_breakpoint == "block" and same.lease != own.lease:
        raise DirectiveError(
            f"automatic caching of class {own.lease} falls on a block that is marked with class {same.lease}", None
        )
    return None


def _counting(rules: RuleSet, marked: Sequence[Breakpoint], own: Breakpoint | None, read_min: int) -> list[Breakpoint]:
    """The breakpoints that count, from the shortest prefix on. Raises DirectiveError for too many, or in bad order.

    An order is bad only if it is so for the client and in the prompt: templates may render the tools, which come first
    in a request, after its system message.
    """
    if rules.too_many == "refuse" and len(marked) + (own is not None) > rules.most_breakpoints:
        raise DirectiveError(
            f"there are {len(marked)} cache markers{' and automatic caching' if own else ''}; "
            f"at most {rules.most_breakpoints} breakpoints are allowed",
            rules.most_breakpoints if len(marked) > rules.most_breakpoints else None,
        )
    points = [*marked, *(() if own is None else (own,))]
    late = _longer_after_shorter(points)
    if rules.shorter_first == "refuse" and late is not None:
        in_prompt = sorted(points, key=lambda point: point.tokens)
        if _longer_after_shorter(in_prompt) is not None:
            raise DirectiveError(
                f"a marker of class {points[late].lease} comes after one of class {points[late - 1].lease}; "
                "longer classes come first",
                late if late < len(marked) else None,
            )
    kept: dict[int, str] = {}
    for point in points:
        if point.tokens >= max(1, read_min):
            kept[point.tokens] = max(kept.get(point.tokens, point.lease), point.lease, key=lifetime)
    counting: list[Breakpoint] = []
    longest = ""
    for tokens in sorted(kept, reverse=True)[: rules.most_breakpoints]:
        longest = max(longest or kept[tokens], kept[tokens], key=lifetime)
        counting.append(Breakpoint(tokens, longest))
    return counting[::-1]


def _longer_after_shorter(points: Sequence[Breakpoint]) -> int | None:
    """The first one that lives longer than the one before it."""
    for index in range(1, len(points)):
        if lifetime(points[index].lease) > lifetime(points[index - 1].lease):
            return index
    return None


# ---------------------------------------------------------------- where earlier leases are found


def _lookups(
    rules: RuleSet, marked: Sequence[Breakpoint], own: Breakpoint | None, blocks: Sequence[Block]
) -> Iterator[int]:
    """The lengths of prefixes of which an earlier lease may be found, each once."""
    explicit = sorted({point.tokens for point in marked})
    found = set(explicit[: rules.first_markers])
    found.update(explicit[-rules.latest_markers :] if rules.latest_markers else explicit)
    if own is not None:
        found.add(own.tokens)
    elif not explicit and blocks:  # the client asks whether the prompt is cached, and marks nothing
        found.add(blocks[-1].end)
    if rules.lookback:
        positions = _positions(blocks)
        lasts = [position[-1] for position in positions]
        for end in list(found):
            at = bisect_left(lasts, end)
            for position in positions[max(0, at - rules.lookback + 1) : at + 1]:
                found.update(token for token in position if token <= end)
    if rules.earlier_messages:
        endings = _message_endings(blocks)
        found.update(endings[-rules.earlier_messages - 1 :])
    if rules.opening and (opening := _opening_end(blocks)):
        found.add(opening)
    return iter(found)


def _positions(blocks: Sequence[Block]) -> list[list[int]]:
    """The blocks' ends in order; those of a run are one position."""
    positions: list[list[int]] = []
    for kind, run in groupby(blocks, key=lambda block: block.kind):
        ends = [block.end for block in run]
        positions += [ends] if kind in _RUNS else [[end] for end in ends]
    return positions


def _message_endings(blocks: Sequence[Block]) -> list[int]:
    """The end of each message, in order. What stands in no message, such as tools, ends none."""
    return list({block.message: block.end for block in blocks if block.message >= 0}.values())


def _opening_end(blocks: Sequence[Block]) -> int:
    """Where the system and developer messages end with which the prompt begins; 0 if it begins with none."""
    end = 0
    for block in blocks:
        if block.message >= 0 and block.role not in _OPENING_ROLES:
            break
        if block.message >= 0:
            end = block.end
    return end
