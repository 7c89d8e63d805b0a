"""The token ids of requests, four bytes each, and a shared buffer of the tokens that the last steps sampled.

A step samples at least a token for each decoding request. The last ones are written at once, as a row of
`LatestTokens`; each request has a column. A request's `TokenSequence` appends its column when it is read, when the
column goes to another request, and at the latest when a block is full: the buffer keeps `BLOCK_TOKENS` rows. Where a
step brings a request several tokens, those before the last are appended by `extend`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from prompt_cache.kv.block_keys import BLOCK_TOKENS


class LatestTokens:
    """A ring buffer of the last `BLOCK_TOKENS` rows of tokens. `steps`: how many rows were ever written.

    Each row is written twice, `BLOCK_TOKENS` rows apart, so that the last rows are always contiguous.
    """

    __slots__ = ("_columns", "_end", "_rows", "steps")

    def __init__(self, columns: int) -> None:
        self.steps = 0
        self._columns = columns
        self._rows = array("I", [0]) * (2 * BLOCK_TOKENS * columns)
        self._end = BLOCK_TOKENS * columns
        """Index behind the latest row's second copy."""

    def write(self, tokens: list[int]) -> None:
        """Append a row: a token for each column, from the first on."""
        row, rows = array("I"), self._rows
        row.fromlist(tokens)
        at = self.steps % BLOCK_TOKENS * self._columns
        rows[at : at + len(row)] = row
        at += BLOCK_TOKENS * self._columns
        rows[at : at + len(row)] = row
        self._end = at + self._columns
        self.steps += 1

    def last(self, column: int) -> int:
        """The column's token in the latest row."""
        return self._rows[self._end - self._columns + column]

    def since(self, steps: int, column: int) -> array[int]:
        """The column's tokens after the first `steps` rows. Raises ValueError for more than `BLOCK_TOKENS`."""
        count, columns, end = self.steps - steps, self._columns, self._end
        if count > BLOCK_TOKENS:
            raise ValueError(f"{count} tokens asked for, {BLOCK_TOKENS} are kept")
        return self._rows[end - count * columns + column : end : columns]


class TokenSequence(Sequence[int]):
    """Token ids of one request. Slices are arrays: compare them as lists."""

    __slots__ = ("_column", "_latest", "_own", "_taken")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._own = array("I", tokens)
        self._latest: LatestTokens | None = None
        """The buffer to which steps write while its request decodes."""
        self._column = -1
        self._taken = 0
        """How many of the buffer's rows are in `_own`."""

    def follow(self, latest: LatestTokens, column: int) -> None:
        """Take the next tokens from this column of the buffer."""
        self.detach()
        self._latest, self._column, self._taken = latest, column, latest.steps

    def detach(self) -> None:
        """Leave the buffer: the next tokens come by `append`."""
        self.flush()
        self._latest = None

    def append(self, token: int) -> None:
        """Append a token; only while it does not follow a buffer."""
        assert self._latest is None, "a sequence that follows a buffer is appended to by the buffer"
        self._own.append(token)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens behind those that the buffer has so far."""
        self.flush()
        self._own.extend(tokens)

    @property
    def last(self) -> int:
        """The last token."""
        latest = self._latest
        if latest is None or self._taken == latest.steps:
            return self._own[-1]
        return latest.last(self._column)

    def __len__(self) -> int:
        latest = self._latest
        return len(self._own) if latest is None else len(self._own) + latest.steps - self._taken

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> array[int]: ...

    def __getitem__(self, index: int | slice) -> int | array[int]:
        # Another thread may read the tokens before those in the buffer, so such a read changes nothing.
        if not isinstance(index, slice) or index.stop is None or not 0 <= index.stop <= len(self._own):
            self.flush()
        return self._own[index]

    def block(self, index: int) -> bytes:
        """The tokens of the whole block `index` as bytes, four each, as they are hashed."""
        end = (index + 1) * BLOCK_TOKENS
        if end > len(self._own):
            self.flush()
        return self._own[end - BLOCK_TOKENS : end].tobytes()

    def __iter__(self) -> Iterator[int]:
        self.flush()
        return iter(self._own)

    def flush(self) -> int:
        """Append the tokens that are still in the buffer; returns how many tokens there are."""
        own, latest = self._own, self._latest
        if latest is not None and (steps := latest.steps) != self._taken:
            own += latest.since(self._taken, self._column)
            self._taken = steps
        return len(own)
