"""What the sampler asks of a grammar, whichever library stands behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class InvalidGrammar(ValueError):
    """A grammar that cannot be read, or that no output fulfils; the message says why."""


class Guide(Protocol):
    """One output's place in its grammar. `ended`: it is complete, and nothing can follow. `failure`: why it is lost.
    `cpu_s`: CPU time that it took so far."""

    ended: bool
    failure: str | None
    cpu_s: float

    def allow(self, row: torch.Tensor) -> None:
        """Write which tokens may come next, a bit each, into an int32 row on the host."""
        ...

    def settle(self, token: int, left: int) -> int:
        """The drawn token, or another one if after it `left` − 1 more could not complete the output."""
        ...

    def settle_within(self, token: int, left: int, has_time: Callable[[], bool]) -> int | None:
        """The same, or None when `has_time` says no before it is known: asked again, it goes on from there."""
        ...

    def take(self, token: int) -> None:
        """The token was put out."""
        ...


class Grammar(Protocol):
    """A compiled grammar."""

    def guide(self) -> Guide:
        """A guide at its beginning."""
        ...


class Grammars(Protocol):
    """Compiles grammars for one model, and remembers them."""

    def compiled(self, text: str) -> Grammar:
        """The grammar that `Generate.grammar` says. Any thread may call this. Raises InvalidGrammar."""
        ...
