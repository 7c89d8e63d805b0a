"""Merkle trees of RFC 6962: one root stands for a list, and a short path proves that an entry is in its place.

A leaf and a node are hashed with different first bytes, so that neither can be taken for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

EMPTY = sha256(b"").digest()
"""The root of an empty list."""


def leaf_hash(entry: bytes) -> bytes:
    """The hash of an entry."""
    return sha256(b"\0" + entry).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


class MerkleRoot:
    """The root of leaves that come one by one, in memory for the tree's height alone."""

    def __init__(self) -> None:
        self.leaves = 0
        self._peaks: list[bytes] = []
        """The roots of the complete trees of different sizes that the leaves make, the largest first."""

    def append(self, leaf: bytes) -> None:
        """Add the hash of the next entry."""
        self.leaves += 1
        size = self.leaves
        while not size & 1:
            leaf = _node_hash(self._peaks.pop(), leaf)
            size >>= 1
        self._peaks.append(leaf)

    @property
    def root(self) -> bytes:
        """The root of the leaves until now."""
        if not self._peaks:
            return EMPTY
        peaks = list(self._peaks)
        root = peaks.pop()
        while peaks:
            root = _node_hash(peaks.pop(), root)
        return root


class MerkleTree:
    """A tree that is small enough to be kept, for paths to its leaves."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels: list[Sequence[bytes]] = [leaves]
        level = leaves
        while len(level) > 1:
            above = [_node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
            if len(level) & 1:  # the last one goes up as it is: so the tree is that of RFC 6962
                above.append(level[-1])
            self._levels.append(above)
            level = above

    @property
    def root(self) -> bytes:
        """The root."""
        top = self._levels[-1]
        return top[0] if top else EMPTY

    def path(self, index: int) -> list[bytes]:
        """The hashes beside the way from a leaf up to the root."""
        path = []
        for level in self._levels[:-1]:
            beside = index ^ 1
            if beside < len(level):
                path.append(level[beside])
            index >>= 1
        return path
