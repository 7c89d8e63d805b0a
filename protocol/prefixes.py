"""Names of a prompt's prefixes, by which gateways tell replicas and one another what was sent where.

A prefix has a name at the end of each block at first, and then more seldom the longer it is: never more than a 16th of
its length is without a name. A name is 8 bytes of a keyed hash: only who knows the project can make it.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat

STEP_TOKENS = 64
NAME_BYTES = 8
_DENSE = 16
"""So many names follow each other in one distance."""
_MOST = 256
"""Names of a prompt at most: those of 15 million tokens."""

PREFIX_ENDS: tuple[int, ...] = tuple(
    STEP_TOKENS * blocks
    for blocks in accumulate(repeat(0, _MOST - 1), lambda blocks, _: blocks + max(1, blocks // _DENSE), initial=1)
)
"""How many tokens the named prefixes of a prompt have, the shortest first."""


def prefix_names(key: bytes, tokens: Sequence[int]) -> bytes:
    """The names of a prompt's prefixes, one after the other. `key`: at most 64 bytes, of who may know of one another's
    prompts."""
    written = memoryview(array("I", tokens)).cast("B")
    digest = hashlib.blake2b(digest_size=NAME_BYTES, key=key)
    names = []
    for before, end in pairwise([0, *PREFIX_ENDS[: bisect_right(PREFIX_ENDS, len(tokens))]]):
        digest.update(written[before * 4 : end * 4])
        names.append(digest.copy().digest())
    return b"".join(names)


def split_names(names: bytes) -> list[bytes]:
    """The names that `prefix_names` joined; those beyond `PREFIX_ENDS` are left out."""
    most = min(len(names) // NAME_BYTES, _MOST)
    return [names[at * NAME_BYTES : (at + 1) * NAME_BYTES] for at in range(most)]
