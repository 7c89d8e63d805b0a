"""Drafts from what a scope's earlier requests put out: agents and templates write the same again and again.

SuffixDecoding (Oliaro et al. 2024) keeps a suffix tree of outputs, and continues the longest suffix of the present text
that stands in it by what followed most often. Here the tree is an index of all runs of LEAST_MATCH tokens with the
places where they stand; the match is made longer by comparing the texts. It answers the same question, and a request's
text can be taken out again.

What is kept is text, of one scope under one root each: a request is told only of texts of its own scope and cache
partition. Requests that may not be stored, or whose scope has no retention, are not kept; a scope's texts go when it is
purged, and each when its retention is over. Texts are taken in and out in pieces, so that no step waits for long.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from engine.scheduling.request import Request
from engine.speculation.drafter import Drafter, Proposal, Query
from engine.speculation.ngram_drafter import chance_of

LEAST_MATCH = 4
LONGEST_MATCH = 24
_PLACES = 8
"""Places that are known of a run of tokens: the latest."""
TOKEN_BYTES, TEXT_BYTES = 320, 1024
"""Estimated bytes of memory that a token takes, in the text and in the index; and a text itself."""
SCOPE_BYTES, ALL_BYTES = 16 << 20, 128 << 20
"""The most that a scope may take with all its partitions, and all together."""
_LONGEST_TEXT = 8192
"""Tokens of one output that are kept: its first."""
_TOKENS_A_STEP = 512
"""Tokens that go into the index, or out of it, before a step: about 0.5 ms."""
_SWEEP_S = 1.0
_MOST_KEYS, _MOST_ROOTS = 2048, 256
"""Scopes and partitions with texts, and those of one scope: clients name partitions, as many as they like."""
_MOST_SCOPES = 10_000
"""Scopes whose retention is known; the texts of one that is not are dropped."""

Key: TypeAlias = tuple[str, bytes]
"""A scope's id, and its root."""


@dataclass(eq=False)
class KeptText:
    """The end of a prompt, and what was put out behind it. `indexed`: how many of its tokens are in the index."""

    tokens: array[int]
    since: float
    indexed: int = 0
    gone: bool = False

    @property
    def size(self) -> int:
        """Estimated bytes of memory."""
        return TEXT_BYTES + TOKEN_BYTES * len(self.tokens)

    def run(self, end: int) -> bytes:
        """The run of LEAST_MATCH tokens that ends before `end`."""
        return self.tokens[end - LEAST_MATCH : end].tobytes()


Place: TypeAlias = tuple[KeptText, int]
"""A text, and the index of the token behind a match."""


@dataclass
class ScopeTexts:
    """The texts of one scope, the least recently used first, and the places of their runs of tokens."""

    texts: OrderedDict[int, KeptText] = field(default_factory=OrderedDict)
    places: dict[bytes, deque[Place]] = field(default_factory=dict)
    size: int = 0

    def enter(self, text: KeptText) -> None:
        self.texts[id(text)] = text
        self.size += text.size

    def take_out(self, text: KeptText) -> None:
        """The text is not found any more; its runs are to leave the index."""
        if self.texts.pop(id(text), None) is not None:
            text.gone = True
            self.size -= text.size

    def use(self, text: KeptText) -> None:
        self.texts.move_to_end(id(text))

    def best(self, tokens: Sequence[int]) -> tuple[Place, float] | None:
        """Where the longest match of these last tokens goes on as it does most often, and how likely that is."""
        found = [place for place in self.places.get(array("I", tokens[-LEAST_MATCH:]).tobytes(), ()) if _goes_on(place)]
        if not found:
            return None
        lengths = [_match(text.tokens, end, tokens) for text, end in found]
        longest = max(lengths)
        matches = [place for place, length in zip(found, lengths, strict=True) if length == longest]
        followed = Counter(text.tokens[end] for text, end in matches)
        token, times = followed.most_common(1)[0]
        latest = next(place for place in reversed(matches) if place[0].tokens[place[1]] == token)
        return latest, chance_of(longest) * times / len(matches)


def _goes_on(place: Place) -> bool:
    return not place[0].gone and place[1] < len(place[0].tokens)


def _match(text: Sequence[int], end: int, tokens: Sequence[int]) -> int:
    """How many tokens before `end` are the last of `tokens`."""
    length = LEAST_MATCH
    while length < min(end, len(tokens)) and text[end - length - 1] == tokens[-length - 1]:
        length += 1
    return length


class SuffixDrafter(Drafter):
    """Drafts what followed in earlier outputs of the same scope. `clock`: seconds that never go back."""

    name: ClassVar[str] = "suffix"

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        scope_bytes: int = SCOPE_BYTES,
        all_bytes: int = ALL_BYTES,
    ) -> None:
        self._clock = clock
        self._scope_bytes = scope_bytes
        self._all_bytes = all_bytes
        self._scopes: OrderedDict[Key, ScopeTexts] = OrderedDict()
        """The least recently used first."""
        self._roots: dict[str, OrderedDict[bytes, None]] = {}
        """By scope, the roots of those, in the same order."""
        self._retentions: dict[str, float] = {}
        self._coming: deque[tuple[ScopeTexts, KeptText]] = deque()
        self._going: deque[tuple[ScopeTexts, KeptText]] = deque()
        self._cursors: dict[int, tuple[Place, int]] = {}
        """By arrival, where a request's text goes on, and how long the request was then."""
        self._swept_at = clock()

    @property
    def size(self) -> int:
        """Estimated bytes of memory of all texts, those that are leaving the index included."""
        return sum(texts.size for texts in self._scopes.values()) + sum(text.size for _, text in self._going)

    def texts(self, scope: str) -> int:
        """How many texts of a scope are kept."""
        return sum(len(self._scopes[scope, root].texts) for root in self._roots.get(scope, ()))

    # ------------------------------------------------------------ drafts

    def catch_up(self) -> None:
        self._sweep_if_due()
        self._index()

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        self._sweep_if_due()
        return [self._proposal(query) if self._may_read(query.request) else None for query in queries]

    def _proposal(self, query: Query) -> Proposal | None:
        request = query.request
        if (texts := self._scopes.get(_key(request))) is None:
            return None
        tokens = request.tokens[-LONGEST_MATCH:]
        place = self._place_ahead(request)
        chance = 1.0
        if place is not None:
            chance = chance_of(_match(place[0].tokens, place[1], tokens))
        elif (best := texts.best(tokens) if len(tokens) >= LEAST_MATCH else None) is not None:
            place, chance = best
        if place is None:
            self._cursors.pop(request.arrival, None)
            return None
        text, end = place
        self._cursors[request.arrival] = place, len(request.tokens)
        texts.use(text)
        self._use(_key(request))
        return Proposal(text.tokens[end : end + query.most].tolist(), chance)

    def _place_ahead(self, request: Request) -> Place | None:
        """The place of the last proposal, moved on by what was emitted, if that is what stands there."""
        if request.arrival not in self._cursors:
            return None
        (text, end), length = self._cursors[request.arrival]
        fresh = request.tokens[length:]
        ahead = (text, end + len(fresh))
        matches = _goes_on(ahead) and ahead[1] >= LEAST_MATCH and text.tokens[end : ahead[1]] == fresh
        return ahead if matches else None

    # ------------------------------------------------------------ what is kept

    def end(self, request: Request) -> None:
        self._cursors.pop(request.arrival, None)
        if not self._may_keep(request) or request.output < LEAST_MATCH:
            return
        start = max(0, request.prompt - LEAST_MATCH)
        key = _key(request)
        texts = self._scopes.setdefault(key, ScopeTexts())
        self._use(key)
        text = KeptText(request.tokens[start : request.prompt + _LONGEST_TEXT], self._clock())
        texts.enter(text)
        self._coming.append((texts, text))
        self._bound_scope(key[0])
        while self._scopes and (len(self._scopes) > _MOST_KEYS or self.size > self._all_bytes):
            self._drop(next(iter(self._scopes)))

    def _use(self, key: Key) -> None:
        """It is now the latest used."""
        scope, root = key
        self._scopes.move_to_end(key)
        roots = self._roots.setdefault(scope, OrderedDict())
        roots[root] = None
        roots.move_to_end(root)

    def _bound_scope(self, scope: str) -> None:
        """What a scope has too much of it loses itself: others keep theirs."""
        roots = self._roots[scope]
        size = sum(self._scopes[scope, root].size for root in roots)
        # A partition's index goes as a whole: its runs need not be looked for.
        while len(roots) > 1 and (len(roots) > _MOST_ROOTS or size > self._scope_bytes):
            oldest = scope, next(iter(roots))
            size -= self._scopes[oldest].size
            self._drop(oldest)
        last = self._scopes[scope, next(iter(roots))]
        while last.size > self._scope_bytes and last.texts:
            self._take_out(last, next(iter(last.texts.values())))

    def purge(self, scope: str) -> None:
        for root in list(self._roots.get(scope, ())):
            self._drop((scope, root))

    def forget(self, scope: str) -> None:
        self._retentions.pop(scope, None)
        self.purge(scope)

    def retain(self, scope: str, seconds: float) -> None:
        before = self._retentions.pop(scope, None)
        self._retentions[scope] = seconds
        if before is not None and seconds < before:  # others are looked at in the next sweep
            self._sweep()
        if len(self._retentions) > _MOST_SCOPES:
            oldest = next(iter(self._retentions))
            self.forget(oldest)

    def _pop(self, key: Key) -> ScopeTexts:
        scope, root = key
        del self._roots[scope][root]
        if not self._roots[scope]:
            del self._roots[scope]
        return self._scopes.pop(key)

    def _drop(self, key: Key) -> None:
        texts = self._pop(key)
        for text in texts.texts.values():
            text.gone = True
        texts.texts.clear()
        texts.places.clear()
        self._coming = deque(entry for entry in self._coming if entry[0] is not texts)
        self._going = deque(entry for entry in self._going if entry[0] is not texts)

    def _take_out(self, texts: ScopeTexts, text: KeptText) -> None:
        texts.take_out(text)
        self._going.append((texts, text))

    def _may_read(self, request: Request) -> bool:
        return request.read

    def _may_keep(self, request: Request) -> bool:
        """Whether its text may be kept beyond its end: a request that is not stored everywhere is kept nowhere here,
        nor is one of a scope whose retention nobody has told."""
        return request.store == "all" and self._retentions.get(_key(request)[0], 0.0) > 0

    def _sweep_if_due(self) -> None:
        if self._clock() >= self._swept_at + _SWEEP_S:
            self._swept_at = self._clock()
            self._sweep()

    def _sweep(self) -> None:
        """Take out what is older than its scope's retention, and scopes without texts."""
        now = self._clock()
        for key, texts in list(self._scopes.items()):
            retention = self._retentions.get(key[0], 0.0)
            for text in [text for text in texts.texts.values() if now >= text.since + retention]:
                self._take_out(texts, text)
            if not texts.texts and not texts.places:
                self._pop(key)

    # ------------------------------------------------------------ the index

    def _index(self) -> None:
        """Take a bounded number of tokens into the index, and out of it."""
        left = _TOKENS_A_STEP
        while left > 0 and self._going:
            texts, text = self._going[0]
            left -= self._remove(texts, text, left)
            if not text.indexed:
                self._going.popleft()
        while left > 0 and self._coming:
            texts, text = self._coming[0]
            left -= self._insert(texts, text, left)
            if text.gone or text.indexed == len(text.tokens):
                self._coming.popleft()

    def _insert(self, texts: ScopeTexts, text: KeptText, most: int) -> int:
        if text.gone:
            return 1
        ends = range(max(text.indexed + 1, LEAST_MATCH), min(text.indexed + most, len(text.tokens)) + 1)
        for end in ends:
            texts.places.setdefault(text.run(end), deque(maxlen=_PLACES)).append((text, end))
        inserted = min(most, len(text.tokens) - text.indexed)
        text.indexed += inserted
        return max(1, inserted)

    def _remove(self, texts: ScopeTexts, text: KeptText, most: int) -> int:
        removed = min(most, text.indexed)
        for end in range(text.indexed, max(text.indexed - removed, LEAST_MATCH - 1), -1):
            run = text.run(end)
            if (places := texts.places.get(run)) is not None:
                kept = deque((place for place in places if place[0] is not text), maxlen=_PLACES)
                if kept:
                    texts.places[run] = kept
                else:
                    del texts.places[run]
        text.indexed -= removed
        return max(1, removed)


def _key(request: Request) -> Key:
    """Whose text the request's output is: its last segment's."""
    _, root, scope = request.segments[-1]
    return scope, root
