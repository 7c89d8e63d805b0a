"""How to call each operation so that it answers 2xx to whom the object belongs: one proof for each.

A room's routes have their proofs in a module `proofs_….py` of this folder, which `all_proofs` imports:

    @proof("retrieve_cache")
    async def _(world: World, place: Place) -> Call:
        return Call({"name": await a_lease(world, place)})

It makes a new object of this place each time and says how to call the operation with it. `by` names the kind of key
that the object belongs to; by default a project's below /v1 where it may, else an administrator's, and an operator's
where the permission belongs to the platform.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from tests.gateway.access.world import Place, World


class Call(Struct, frozen=True):
    """One call of an operation. `shared`: parameters of the path that are nobody's, such as the name of a model, so
    that anybody may use them. `tells`: what only those may read whom the object belongs to."""

    path: Mapping[str, Any] = {}
    query: Any = None
    body: Any = None
    headers: Mapping[str, str] = {}
    shared: frozenset[str] = frozenset()
    tells: tuple[str, ...] = ()


class Proof(Struct, frozen=True):
    """`quiet`: a principal with the permission may all the same be refused, and why."""

    make: Callable[[World, Place], Awaitable[Call]]
    by: str | None = None
    quiet: str = ""


PROOFS: dict[str, Proof] = {}
"""The id of an operation → its proof."""


def proof(
    *operations: str, by: str | None = None, quiet: str = ""
) -> Callable[[Callable[[World, Place], Awaitable[Call]]], Callable[[World, Place], Awaitable[Call]]]:
    """Declare how these operations are called."""

    def declare(make: Callable[[World, Place], Awaitable[Call]]) -> Callable[[World, Place], Awaitable[Call]]:
        for operation in operations:
            assert operation not in PROOFS, f"{operation} has two proofs"
            PROOFS[operation] = Proof(make, by, quiet)
        return make

    return declare
