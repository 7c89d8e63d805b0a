"""Where two prompts part: what one begins with of another, and at which JSON path they differ.

A comparison with a request that the client names is in the coarse terms of the vendors' diagnostics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from prompt_cache.history.prefix_hashes import LEAST_PIECE
from prompt_cache.history.records import RequestRecord, SpanNote

HEADS: Mapping[str, Literal["tools", "system"]] = {"tools": "tools", "system": "system", "instructions": "system"}
"""What stands before all messages: a field of the body -> the part of a prompt that it is."""
_HEAD_PATHS = tuple(f"$.{field}" for field in HEADS)
Changed = Literal["", "model", "partition", "tools", "system", "messages"]


class Earlier(Struct, frozen=True):
    """An earlier request, and how many tokens of the new one it began with."""

    record: RequestRecord
    common: int


class Comparison(Struct, frozen=True):
    """What differs first from the named request, empty if nothing that it cached.

    `state`: `none` if no request was named, `not_found` if the project has none of that id. `cached`: tokens that would
    have been read had nothing changed. `reusable`: tokens that the two begin with. `read`: tokens that were read.
    """

    state: Literal["found", "none", "not_found", "unavailable"]
    changed: Changed = ""
    cached: int = 0
    reusable: int = 0
    read: int = 0

    @property
    def diverged(self) -> int:
        """Cached tokens that stand behind the first difference."""
        return max(0, self.cached - self.reusable)

    @property
    def missed(self) -> int:
        """Cached tokens that were not read."""
        return max(0, self.cached - self.read)


def compare(new: RequestRecord, earlier: RequestRecord, common: int) -> Comparison:
    """How `new` differs from a request with which it has its first `common` tokens in common."""
    cached = min(earlier.extent, new.tokens)
    if (earlier.model, earlier.text_digest) != (new.model, new.text_digest):
        return Comparison("found", "model", cached, 0, new.billed_read)
    if earlier.partition != new.partition:
        return Comparison("found", "partition", cached, 0, new.billed_read)
    if common < cached:
        path = path_at(new, common, Earlier(earlier, common))
    elif new.automatic or new.billed_read >= cached or not (path := text_around(new, cached)):
        return Comparison("found", "", cached, common, new.billed_read)
    # Else an entry is not found, since the text that it ended with goes on here.
    changed: Changed = next((part for field, part in HEADS.items() if path.startswith(f"$.{field}")), "messages")
    return Comparison("found", changed, cached, common, new.billed_read)


def is_relative(new: RequestRecord, earlier: Earlier) -> bool:
    """Whether an earlier request of the same family has more in common than what the template begins with.

    Either goes on where the other ends, or they begin with as many tokens of the client's as make a piece, or one of
    their first texts ends alike.
    """
    record = earlier.record
    if earlier.common >= min(new.tokens, record.tokens) or not frozenset(new.tails).isdisjoint(record.tails):
        return True
    if not new.spans:
        return earlier.common >= LEAST_PIECE
    return sum(max(0, min(span.end, earlier.common) - span.start) for span in new.spans) >= LEAST_PIECE


def path_at(record: RequestRecord, token: int, against: Earlier | None = None) -> str:
    """The JSON path of a token: of the text that it belongs to, else of the message that the template begins there.

    `against`: an earlier request with the same tokens up to this one. At a token that the template wrote here, the path
    is that of the tool, call or text before it, if that is the first piece that differs: a template may write some of a
    tool itself, such as a number. Else, at one that belongs to a text there, it is that of the text that ended here; if
    none did, that of the text there, which is missing here. Tools and instructions that are missing here are named by
    their path there, too.
    """
    here, before, after = _around(record, token)
    if here is not None and here.start < token:
        return here.path
    if against is not None and against.record.family != record.family:
        against = None  # its pieces and tokens stand for others
    if against is not None and before is not None and before.path == _first_difference(record, against.record):
        return before.path
    if here is not None:
        return here.path
    following = record.root_path if after is None else message_of(after.path)
    if against is None:
        return following
    text, _, next_text = _around(against.record, token)
    if text is None:
        missing = "" if next_text is None else message_of(next_text.path)
        return missing if _is_head(missing) and not _is_head(following) else following
    return before.path if before is not None and before.end == token and text.start < token else text.path


def _first_difference(record: RequestRecord, earlier: RequestRecord) -> str:
    """The path of the first piece that the earlier request had otherwise; empty if that is not known."""
    for ours, theirs in zip(record.pieces, earlier.pieces, strict=False):
        if ours.key != theirs.key:
            return ours.path if ours.key and theirs.key and ours.path == theirs.path else ""
    return ""


def text_around(new: RequestRecord, token: int) -> str:
    """The path of the text in whose middle this token is; empty if there is none. No block ends inside a text."""
    return next((span.path for span in new.spans if span.start < token < span.end), "")


def _around(record: RequestRecord, token: int) -> tuple[SpanNote | None, SpanNote | None, SpanNote | None]:
    """The span that has this token, the one before it, and the one after it."""
    before = None
    for span in record.spans:
        if span.start > token:
            return None, before, span
        if token < span.end:
            return span, before, None
        before = span
    return None, before, None


def _is_head(path: str) -> bool:
    return path.startswith(_HEAD_PATHS)


def message_of(path: str) -> str:
    """The path of the message, tool or block list that a text's path belongs to: up to its first index."""
    head, bracket, rest = path.partition("[")
    return f"{head}[{rest.partition(']')[0]}]" if bracket else path
