"""The interface between the sampler and grammars, independent of the grammar library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    import torch


class InvalidGrammar(ValueError):
    """A grammar that cannot be parsed, or that no output satisfies; the message says why."""


class Guide(Protocol):
    """The state of one output in its grammar.

    `ended`: the output is complete, and nothing can follow. `failure`: why the grammar was given up, else None.
    `cpu_s`: seconds of CPU time so far. `idle`: any token may be drawn next, and none is replaced. `choosing`: a choice
    has begun for which there was no time left.
    """

    @property
    def ended(self) -> bool: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def cpu_s(self) -> float: ...

    @property
    def idle(self) -> bool: ...

    @property
    def choosing(self) -> bool: ...

    def fill_mask(self, row: torch.Tensor) -> None:
        """Write the mask of allowed next tokens, a bit each, into an int32 row on the host."""
        ...

    def choose_token(self, token: int, left: int) -> int:
        """The sampled token, or another one if after it `left` − 1 more could not complete the output."""
        ...

    def choose_token_within(self, token: int, left: int, has_time: Callable[[], bool]) -> int | None:
        """`choose_token`, or None when `has_time` is false before the answer is known. The next call resumes there."""
        ...

    def accept_token(self, token: int) -> None:
        """Advance by a token of the output."""
        ...

    def fork(self) -> Self:
        """A copy that goes its own way; not while it is `choosing`."""
        ...

    def count_valid(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may follow each other here; a guess that changes nothing."""
        ...

    def forced_tokens(self, most: int) -> Sequence[int]:
        """Tokens that are likely all that may follow here, `most` of them; a guess that changes nothing."""
        ...


class GrammarGuide(Guide, Protocol):
    """The guide of a grammar. `reserve`: tokens that should be left when the output begins, so that it is completed."""

    @property
    def reserve(self) -> int: ...


class Grammar(Protocol):
    """A compiled grammar."""

    def guide(self) -> GrammarGuide:
        """A new guide at the beginning of the grammar."""
        ...


class Grammars(Protocol):
    """Compiles and caches the grammars of one model."""

    def compiled(self, text: str) -> Grammar:
        """The grammar of a `Generate.grammar` text. Thread-safe. Raises InvalidGrammar."""
        ...
