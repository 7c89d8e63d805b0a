"""The tokens of requests, four bytes each, and where those of the last steps lie until somebody wants them.

A step draws a token for each request that decodes. They are written as they come, all at once, as a row of
`LatestTokens`; a request is one column there, and puts what stands in it behind its own tokens when these are read, or
when its column is given to another. It is at the latest when a block is full: so many rows are kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from prompt_cache.kv.block_keys import BLOCK_TOKENS


class LatestTokens:
    """The tokens of the last `BLOCK_TOKENS` steps, of so many columns. `steps` counts all that were written.

    Each row is written twice, `BLOCK_TOKENS` rows apart, so that those of the last steps always stand in a row.
    """

    __slots__ = ("_columns", "_end", "_rows", "steps")

    def __init__(self, columns: int) -> None:
        self.steps = 0
        self._columns = columns
        self._rows = array("I", [0]) * (2 * BLOCK_TOKENS * columns)
        self._end = BLOCK_TOKENS * columns
        """Where the last row ends that has as many before it as are kept."""

    def write(self, tokens: list[int]) -> None:
        """A step drew these, one for each column from the first on."""
        row, rows = array("I"), self._rows
        row.fromlist(tokens)
        at = self.steps % BLOCK_TOKENS * self._columns
        rows[at : at + len(row)] = row
        at += BLOCK_TOKENS * self._columns
        rows[at : at + len(row)] = row
        self._end = at + self._columns
        self.steps += 1

    def last(self, column: int) -> int:
        """What the last step drew for this column."""
        return self._rows[self._end - self._columns + column]

    def since(self, steps: int, column: int) -> array[int]:
        """What was drawn for this column after so many steps in all; `BLOCK_TOKENS` tokens at most."""
        count, columns, end = self.steps - steps, self._columns, self._end
        if count > BLOCK_TOKENS:
            raise ValueError(f"{count} tokens asked for, {BLOCK_TOKENS} are kept")
        return self._rows[end - count * columns + column : end : columns]


class TokenSequence(Sequence[int]):
    """Token ids of one request. What is read of them is an array; where it is compared, compare lists of both."""

    __slots__ = ("_column", "_latest", "_own", "_taken")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._own = array("I", tokens)
        self._latest: LatestTokens | None = None
        """Where the next ones are written while its request decodes."""
        self._column = -1
        self._taken = 0
        """After how many of the steps there its own tokens end."""

    def follow(self, latest: LatestTokens, column: int) -> None:
        """The next tokens are written there; those of a column that it had before are its own now."""
        self.settle()
        self._latest, self._column, self._taken = latest, column, latest.steps

    def settle(self) -> None:
        """All tokens are its own now, and the next ones are appended."""
        self.take()
        self._latest = None

    def append(self, token: int) -> None:
        """One more; only while none are written elsewhere."""
        assert self._latest is None, "the next token is written by the step"
        self._own.append(token)

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
        # What lies before the latest tokens another thread may read as well: it moves nothing.
        if not isinstance(index, slice) or index.stop is None or not 0 <= index.stop <= len(self._own):
            self.take()
        return self._own[index]

    def block(self, index: int) -> bytes:
        """The tokens of a whole block, as they are hashed: four bytes each."""
        end = (index + 1) * BLOCK_TOKENS
        if end > len(self._own):
            self.take()
        return self._own[end - BLOCK_TOKENS : end].tobytes()

    def __iter__(self) -> Iterator[int]:
        self.take()
        return iter(self._own)

    def take(self) -> int:
        """Put what was written elsewhere behind its own; returns how many tokens it has."""
        own, latest = self._own, self._latest
        if latest is not None and (steps := latest.steps) != self._taken:
            own += latest.since(self._taken, self._column)
            self._taken = steps
        return len(own)
