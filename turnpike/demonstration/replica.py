"""Stands for the replicas of the past month: what they would have had in memory, counted as an engine counts.

It remembers which blocks of a project's prompts were computed, and when each was used last. Nothing is generated.
"""

from __future__ import annotations

from uuid import UUID

from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.promise.prefix_keys import PromptKeys
from protocol.requests import Counts, Miss, MissCause
from turnpike.demonstration.past import HOUR, MINUTE

_HBM, _DRAM, _NVME = 12 * MINUTE, 90 * MINUTE, 8 * HOUR
"""How long a block that nobody uses stays in each tier."""


class RememberingReplica:
    """What one replica has of all projects' prompts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sequence = 0
        self._used: dict[tuple[UUID, bytes], int] = {}

    def run(
        self, project: UUID, keys: PromptKeys, tokens: int, output: int, at: int
    ) -> tuple[Counts, tuple[Miss, ...]]:
        """Compute a prompt at this instant; what was counted, and why the rest was not in memory."""
        blocks = keys.blocks(tokens)
        last = (tokens - 1) // BLOCK_TOKENS  # at least one token is computed, for the first of the output
        read = {"hbm": 0, "dram": 0, "nvme": 0}
        found = 0
        for block in blocks[:last]:
            tier = self._tier(at - self._used.get((project, block), -(10**18)))
            if tier is None:
                break
            read[tier] += BLOCK_TOKENS
            found += BLOCK_TOKENS
        cause = self._cause(project, blocks, found)
        self._used |= {(project, block): at for block in blocks}
        self.sequence += 1
        counts = Counts(tokens, tokens - found, read["hbm"], read["dram"], read["nvme"], output)
        return counts, (Miss(found, tokens, cause),)

    def forget(self, at: int) -> None:
        """Let go of what was in memory long ago."""
        self._used = {key: used for key, used in self._used.items() if at - used < 2 * _NVME}

    @staticmethod
    def _tier(idle: int) -> str | None:
        return "hbm" if idle < _HBM else "dram" if idle < _DRAM else "nvme" if idle < _NVME else None

    def _cause(self, project: UUID, blocks: list[bytes], found: int) -> MissCause:
        first = found // BLOCK_TOKENS
        if first < len(blocks) and (project, blocks[first]) in self._used:
            return "evicted"
        return "diverged" if found else "cold"
