"""Why the tokens of a prompt were not billed as read: each of them has exactly one cause.

A prompt is divided, from its beginning, into four parts:

| part | its tokens |
|---|---|
| read | were billed as read |
| same | an earlier request of the same family began with them |
| other | an earlier request under another model, template or partition began with them |
| new | no earlier request began with them |

Within a part the first cause that applies counts. "Promised" are tokens that a lease of an earlier request covers.

| part | cause | applies if |
|---|---|---|
| same, other | `no_read` | this request wanted no read |
| | `no_store` | this request may not share its KV |
| | `below_minimum` | the prefix is shorter than the least that is cached |
| other | `model_changed` | the models differ |
| | `template_changed` | the templates differ |
| | `partition_changed` | neither differs |
| same, promised | `no_store` | the earlier request may not share its KV |
| | `lease_limit` | the project's leases were at their limit |
| | `not_yet_visible` | the earlier request had not begun to answer |
| | `diverged` | its text goes on here; only under rules without automatic reuse |
| | `purged`, `lease_expired`, `lease_limit` | the lease had ended for this cause |
| | `no_read` | the lease was older than this request wanted |
| | `unmarked` | this request's markers end before it; only without automatic reuse |
| | `lookback_exceeded` | this request looked elsewhere; only without automatic reuse |
| | | else as under automatic reuse, below |
| same, without automatic reuse | `diverged` | the earlier request was cached beyond what is shared |
| | `no_store` | the earlier request may not share all its KV |
| | `unmarked` | else |
| same, under automatic reuse | `no_store` | the earlier request may not share its KV |
| | `not_yet_visible` | the earlier request had not begun to answer |
| | `diverged` | the KV was there, and both requests have a marker beyond what they share |
| | `unmarked` | the KV was there, and was billed as a write |
| | `corrupted`, `late` | the KV was lost, and the replica says how |
| | `no_store` | the KV was lost, and the earlier request may not share all its KV |
| | `other_replica` | the KV was lost, and the earlier request ran on another replica |
| | `evicted` | the KV was lost for another reason |
| | `diverged` | the rest of a block, if both requests go on differently |
| | `block_rest` | the rest of a block otherwise: tokens are found in whole blocks |
| new | `diverged` | the earlier request was cached as far as here |
| | `cold` | else |

Two requests that diverge so early that the shared prefix is below the minimum have the cause `diverged`, if they were
long enough without that. Only from a relative can a prompt diverge (`is_relative`): what every prompt of a template
begins with makes none.

Tokens that were billed as read although their KV was lost are no miss of the client's: they are in `recomputed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args
from uuid import UUID

import msgspec
from msgspec import Struct

from prompt_cache.history.comparison import Earlier, is_relative, path_at, text_around
from prompt_cache.history.records import Entry, RequestRecord
from prompt_cache.kv.block_keys import BLOCK_TOKENS

Cause = Literal[
    "no_read",
    "no_store",
    "below_minimum",
    "model_changed",
    "template_changed",
    "partition_changed",
    "lease_limit",
    "not_yet_visible",
    "purged",
    "lease_expired",
    "unmarked",
    "lookback_exceeded",
    "block_rest",
    "corrupted",
    "late",
    "other_replica",
    "evicted",
    "diverged",
    "cold",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
AUTOMATIC = "automatic"
_SECOND = 1_000_000


class Miss(Struct, frozen=True, array_like=True):
    """The tokens [start, end) missed because of `cause`: one of CAUSES, or a word of the newer gateway that wrote it.

    `path`: the JSON path in this request of its first token; of `diverged`, of the token `differs_at`, from which on
    the prompt is another, and which may lie behind `start`. `against`: the earlier request that it is compared with.
    `at`: when what `cause` says happened, in microseconds since the Unix epoch. `lease`: the class under which they
    could have been read, `automatic` without a lease, empty if not at all.
    """

    start: int
    end: int
    cause: str
    path: str = ""
    against: UUID | None = None
    at: int | None = None
    lease: str = ""
    differs_at: int | None = None

    @property
    def tokens(self) -> int:
        """How many tokens missed."""
        return self.end - self.start


class Diagnosis(Struct, frozen=True, array_like=True):
    """What became of a prompt of `tokens` tokens: `read` from its beginning, and `misses` up to its end, in order.

    `recomputed`: what was billed as read, and computed at our cost. `nearest`: the earlier request that begins alike
    for longest, and `common`: for how many tokens.
    """

    tokens: int
    read: int
    misses: tuple[Miss, ...]
    recomputed: tuple[Miss, ...] = ()
    nearest: UUID | None = None
    common: int = 0


class Ended(Struct, frozen=True):
    """A promise for the first `tokens` tokens that ended at `at` because of `cause`, as the ended leases say."""

    tokens: int
    cause: Literal["lease_expired", "purged", "lease_limit"]
    at: int
    lease: str = ""


class Evidence(Struct, frozen=True):
    """What is known of the project's earlier requests.

    `same`: of the same family, that with the most common tokens first. `other`: the one of another family that says the
    same for longest; its `common` are tokens of the new request. `ended`: promises that have ended.
    """

    same: tuple[Earlier, ...] = ()
    other: Earlier | None = None
    ended: tuple[Ended, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Diagnosis)


def pack(diagnosis: Diagnosis) -> bytes:
    """A diagnosis as a row keeps it."""
    return _encoder.encode(diagnosis)


def unpack(data: bytes) -> Diagnosis:
    """The inverse of `pack`. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)


def diagnose(new: RequestRecord, evidence: Evidence) -> Diagnosis:
    """Say of each token of the prompt why it was not read."""
    read = min(new.billed_read, new.tokens)
    relatives = tuple(earlier for earlier in evidence.same if is_relative(new, earlier))
    if relatives:
        evidence = msgspec.structs.replace(evidence, same=relatives)
    nearest = evidence.same[0] if evidence.same else None
    shared = nearest.common if nearest else 0
    other = evidence.other if evidence.other and evidence.other.common > shared else None
    known = other.common if other else shared
    relative = other or (nearest if relatives else None)
    misses: list[Miss] = []
    if known > read:
        refused = _refused_by_itself(new, known)
        if refused == "below_minimum" and _would_do(new, relative):
            known = read  # what diverged early would have been long enough
        elif refused == "no_read":
            misses += _not_wanted(new, evidence, read, max(read, shared))
            if other is not None:
                misses.append(Miss(max(read, shared), known, refused, against=other.record.id))
        elif refused is not None:
            misses.append(Miss(read, known, refused, against=(other or nearest or _nobody()).record.id))
        else:
            if shared > read:
                misses += _shared(new, evidence, read, shared)
            if other is not None:
                misses.append(_changed(new, other, max(read, shared)))
    if new.tokens > max(known, read):
        misses += _unknown(new, relative, max(known, read))
    return Diagnosis(
        tokens=new.tokens,
        read=read,
        misses=tuple(_with_path(new, miss) for miss in _merged(misses)),
        recomputed=tuple(_recomputed(new, evidence, read)),
        nearest=nearest.record.id if nearest else None,
        common=shared,
    )


def _nobody() -> Earlier:
    raise AssertionError("tokens are known from an earlier request, and there is none")


# ---------------------------------------------------------------- the parts of a prompt


def _refused_by_itself(new: RequestRecord, known: int) -> Cause | None:
    if new.read == "none":
        return "no_read"
    if new.store == "none":
        return "no_store"
    return "below_minimum" if known < new.read_min else None


def _would_do(new: RequestRecord, nearest: Earlier | None) -> bool:
    """Whether the nearest request would have shared enough tokens to be read, had the two not diverged."""
    if nearest is None or nearest.common >= nearest.record.tokens:
        return False
    return min(nearest.record.extent, new.tokens) >= new.read_min


def _not_wanted(new: RequestRecord, evidence: Evidence, start: int, end: int) -> Iterator[Miss]:
    """Why [start, end) was not read: this request did not want it to be. Each miss names the class that was there."""
    against = evidence.same[0].record if evidence.same else None
    for position, promises in _promises(evidence, start, end):
        alive = [one for one in promises if _is_alive(new, evidence, *one)]
        if alive:
            entry, earlier = max(alive, key=lambda one: (one[0].expires_at, -one[0].tokens))
            yield Miss(start, position, "no_read", against=earlier.record.id, lease=entry.lease)
            start = position
    if against is None or start >= end:
        return
    there = against.visible_at is not None and against.visible_at <= new.at
    if new.automatic and there and against.store != "none" and against.replica == new.replica:
        whole = max(start, min(end, new.tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
        if whole > start:
            yield Miss(start, whole, "no_read", against=against.id, lease=AUTOMATIC)
        start = whole
    if end > start:
        yield Miss(start, end, "no_read", against=against.id)


def _is_alive(new: RequestRecord, evidence: Evidence, entry: Entry, earlier: Earlier) -> bool:
    """Whether this promise could have been read."""
    record = earlier.record
    visible = record.visible_at is not None and record.visible_at <= new.at
    ended = any(told.tokens == entry.tokens and record.at <= told.at <= new.at for told in evidence.ended)
    return visible and record.store == "all" and not entry.refused and not ended and entry.expires_at > new.at


def _changed(new: RequestRecord, other: Earlier, start: int) -> Miss:
    record = other.record
    if record.model != new.model:
        cause: Cause = "model_changed"
    elif record.text_digest != new.text_digest:
        cause = "template_changed"
    else:
        cause = "partition_changed"
    lease = next((entry.lease for entry in record.entries), AUTOMATIC if record.automatic else "")
    return Miss(start, other.common, cause, against=record.id, at=record.at, lease=lease)


def _unknown(new: RequestRecord, nearest: Earlier | None, start: int) -> Iterator[Miss]:
    """The tokens from `start` on, which no earlier request had in this place."""
    if nearest is None:
        yield Miss(start, new.tokens, "cold")
        return
    record = nearest.record
    parted = nearest.common < record.tokens and start <= nearest.common
    extent = min(new.tokens, record.extent) if parted else start
    if extent > start:
        yield _diverged(new, nearest, start, extent)
    if new.tokens > max(start, extent):
        yield Miss(max(start, extent), new.tokens, "cold", against=record.id)


def _diverged(new: RequestRecord, earlier: Earlier, start: int, end: int) -> Miss:
    """Why [start, end) was not read: the two requests diverge where their common tokens end."""
    record, at = earlier.record, earlier.common
    lease = _class_beyond(record, at)
    return Miss(start, end, "diverged", path_at(new, at, earlier), record.id, record.at, lease, differs_at=at)


def _class_beyond(record: RequestRecord, token: int) -> str:
    """The class of the shortest promise that reached beyond `token`."""
    beyond = [entry for entry in record.entries if entry.tokens > token]
    if beyond:
        return min(beyond, key=lambda entry: entry.tokens).lease
    return AUTOMATIC if record.automatic else ""


def _shared(new: RequestRecord, evidence: Evidence, read: int, shared: int) -> Iterator[Miss]:
    """The tokens [read, shared), which the nearest earlier request had too."""
    start = read
    for position, promises in _promises(evidence, read, shared):
        yield from _promised(new, evidence, promises, start, position)
        start = position
    if start < shared:
        yield from _unpromised(new, evidence.same[0], start, shared)


def _promises(evidence: Evidence, read: int, shared: int) -> list[tuple[int, list[tuple[Entry, Earlier]]]]:
    """The promises for more than was read, by where they end, each with all that cover as much."""
    found = [
        (entry, earlier)
        for earlier in evidence.same
        for entry in earlier.record.entries
        if read < entry.tokens <= min(earlier.common, shared)
    ]
    ends = sorted({entry.tokens for entry, _ in found})
    return [(end, [promise for promise in found if promise[0].tokens >= end]) for end in ends]


def _promised(
    new: RequestRecord, evidence: Evidence, promises: Sequence[tuple[Entry, Earlier]], start: int, end: int
) -> Iterator[Miss]:
    """Why none of these promises, of which each covers [start, end), was read: as the one that lived longest."""
    entry, earlier = max(promises, key=lambda one: (not one[0].refused, one[0].expires_at, -one[0].tokens))
    record = earlier.record
    told = next((told for told in evidence.ended if told.tokens == entry.tokens), None)
    ended = told if told is not None and record.at <= told.at <= new.at else None

    def miss(cause: Cause, at: int | None = None) -> Miss:
        return Miss(start, end, cause, against=record.id, at=at, lease=entry.lease)

    asked = max((tokens for tokens, _ in new.breakpoints), default=0)
    looked = new.lookups is None or entry.tokens in new.lookups
    if record.store != "all":
        yield miss("no_store", record.at)
    elif entry.refused:
        yield miss("lease_limit", record.at)
    elif record.visible_at is None or record.visible_at > new.at:
        yield miss("not_yet_visible", record.visible_at)
    elif not looked and not new.automatic and (inside := text_around(new, entry.tokens)):
        yield Miss(start, end, "diverged", inside, record.id, record.at, entry.lease, entry.tokens)
    elif ended is not None:
        yield miss(ended.cause, ended.at)
    elif entry.expires_at <= new.at:
        yield miss("lease_expired", entry.expires_at)
    elif new.max_age is not None and entry.written_at + new.max_age * _SECOND < new.at:
        yield miss("no_read", entry.written_at)
    elif not looked and entry.tokens > asked and not new.automatic:
        yield miss("unmarked")
    elif not looked and not new.automatic:
        yield miss("lookback_exceeded")
    else:
        yield from _unpromised(new, earlier, start, end, entry.lease)


def _unpromised(new: RequestRecord, earlier: Earlier, start: int, end: int, lease: str = "") -> Iterator[Miss]:
    """Why [start, end), which the earlier request had without a promise, was not read."""
    record = earlier.record

    def miss(cause: Cause, first: int, last: int, at: int | None = None) -> Miss:
        return Miss(first, last, cause, against=record.id, at=at, lease=lease or (AUTOMATIC if automatic else ""))

    automatic = new.automatic
    if not automatic and not lease:
        if record.extent > earlier.common and is_relative(new, earlier):
            yield _diverged(new, earlier, start, end)
        else:
            yield miss("unmarked" if record.store == "all" else "no_store", start, end)
        return
    if record.store == "none":
        yield miss("no_store", start, end, record.at)
        return
    if record.visible_at is None or record.visible_at > new.at:
        yield miss("not_yet_visible", start, end, record.visible_at)
        return
    whole = (min(earlier.common, new.tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
    there = max(start, min(end, new.found))
    if there > start:
        parted = not lease and is_relative(new, earlier) and _is_marked_beyond(new, earlier)
        yield _diverged(new, earlier, start, there) if parted else miss("unmarked", start, there)
    lost = max(there, min(end, whole))
    if lost > there:
        yield from _lost(new, record, there, lost, lease or AUTOMATIC)
    parted = end == earlier.common < min(record.tokens, new.tokens) and not lease
    if end > lost:
        differs = parted and is_relative(new, earlier)
        yield _diverged(new, earlier, lost, end) if differs else miss("block_rest", lost, end)


def _is_marked_beyond(new: RequestRecord, earlier: Earlier) -> bool:
    """Whether both have a marker beyond their common tokens, so that only what differs before it kept it from being
    read."""
    ends = [entry.tokens for entry in earlier.record.entries if not entry.refused]
    return max(ends, default=0) > earlier.common < max((tokens for tokens, _ in new.breakpoints), default=0)


def _lost(new: RequestRecord, record: RequestRecord, start: int, end: int, lease: str) -> Iterator[Miss]:
    """The tokens [start, end), whose KV was once there and had to be computed again: for the cause that the replica
    said where it said one."""
    otherwise: Cause = "other_replica" if record.replica != new.replica else "evicted"
    if record.store != "all":
        otherwise = "no_store"
    for first, last, cause in _told(new):
        if first < end and last > start:
            if first > start:
                yield Miss(start, first, otherwise, against=record.id, lease=lease)
            yield Miss(max(start, first), min(end, last), cause, against=record.id, lease=lease)
            start = min(end, last)
    if start < end:
        yield Miss(start, end, otherwise, against=record.id, lease=lease)


def _told(new: RequestRecord) -> Iterator[tuple[int, int, str]]:
    """What the replica lost, in order: where each part stands if all that it found stands at the prompt's beginning."""
    at = new.found
    for lost in new.lost:
        at = max(at, lost.start)
        yield at, at + lost.end - lost.start, lost.cause
        at += lost.end - lost.start


def _recomputed(new: RequestRecord, evidence: Evidence, read: int) -> Iterator[Miss]:
    """The whole blocks that were billed as read and had to be computed, since their KV was lost."""
    whole = (min(read, new.tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
    if not evidence.same or new.found >= whole:
        return
    for miss in _lost(new, evidence.same[0].record, new.found, whole, ""):
        yield _with_path(new, miss)


# ---------------------------------------------------------------- putting together


def _merged(misses: Sequence[Miss]) -> Iterator[Miss]:
    """The misses, with neighbours that say the same joined into one."""
    last: Miss | None = None
    for miss in misses:
        if last is not None and (last.end, *_said(last)) == (miss.start, *_said(miss)):
            last = msgspec.structs.replace(last, end=miss.end)
            continue
        if last is not None:
            yield last
        last = miss
    if last is not None:
        yield last


def _said(miss: Miss) -> tuple[object, ...]:
    return miss.cause, miss.path, miss.against, miss.at, miss.lease, miss.differs_at


def _with_path(new: RequestRecord, miss: Miss) -> Miss:
    return miss if miss.path else msgspec.structs.replace(miss, path=path_at(new, miss.start))
