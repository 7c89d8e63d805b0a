"""The keys of a prompt's prefixes at the gateway: what leases, routing and the history of requests are found by.

They are chained as the engine chains its block keys (`prompt_cache.kv.block_keys`), but rooted in the served model's
name and the digest of its text side. So a lease outlives a change of precision or kernels, which only loses KV (C6).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property

from prompt_cache.kv.block_keys import BLOCK_TOKENS, chain, prefix_key, scope_root, text_root


class PromptKeys:
    """The keys of one prompt's prefixes. They are computed when they are asked for, and kept.

    `model` and `text_digest` name the served model. `segments`: (until token, scope root) in order, the last reaching
    the prompt's end. `partition`: a client's string, under which the keys are others.
    """

    def __init__(
        self,
        model: str,
        text_digest: str,
        segments: Sequence[tuple[int, bytes]],
        tokens: Sequence[int],
        *,
        partition: str = "",
    ) -> None:
        self._given = model, text_digest, segments, tokens, partition
        self._blocks: list[bytes] = []

    def blocks(self, tokens: int) -> list[bytes]:
        """The keys of the whole blocks among the first `tokens` tokens."""
        count = tokens // BLOCK_TOKENS
        if len(self._blocks) < count:
            prefix = self._tokens[: count * BLOCK_TOKENS]
            self._blocks = chain(self._root, self._segments, prefix, known=self._blocks)
        return self._blocks[:count]

    def at(self, tokens: int) -> bytes:
        """The key of the prefix of exactly `tokens` tokens, at least one."""
        blocks = self.blocks(tokens)
        scope = next((root for until, root in self._segments if until >= tokens), self._segments[-1][1])
        rest = self._tokens[len(blocks) * BLOCK_TOKENS : tokens]
        return prefix_key(scope, blocks[-1] if blocks else self._root, rest)

    @cached_property
    def _tokens(self) -> array[int]:
        return array("I", self._given[3])

    @cached_property
    def _root(self) -> bytes:
        return text_root(self._given[0], self._given[1])

    @cached_property
    def _segments(self) -> list[tuple[int, bytes]]:
        partition = self._given[4]
        if not partition:
            return list(self._given[2])
        return [(until, scope_root(root, ("partition", partition))) for until, root in self._given[2]]
