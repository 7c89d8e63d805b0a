"""Traces for `cache_replay`, and the files in Mooncake's format that hold them.

A line of a file is a JSON object with `timestamp` (ms), `input_length` (tokens) and `hash_ids`, one for each block of
the prompt, the last of which may be partial; equal hashes mean equal prefixes.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

BLOCK = 512
"""Tokens of a block in generated traces."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt. `blocks` are its whole blocks: what is not filled is not cached. `output`: tokens of its
    answer, 0 where they are not known."""

    at: float
    tokens: int
    blocks: tuple[int, ...]
    output: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """Prompts in the order of their arrival. `block`: tokens of a block."""

    block: int
    prompts: list[Prompt]

    @property
    def tokens(self) -> int:
        """Of all prompts together."""
        return sum(prompt.tokens for prompt in self.prompts)

    def halves(self) -> tuple[Trace, Trace]:
        """Its first and its second half, by requests."""
        middle = len(self.prompts) // 2
        return Trace(self.block, self.prompts[:middle]), Trace(self.block, self.prompts[middle:])


def read_trace(path: Path) -> Trace:
    """The trace in a file. Raises ValueError for a line that is not a request, or without requests."""
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            line = json.loads(text)
            at, tokens, output = line.get("timestamp", 0), line["input_length"], line.get("output_length", 0)
            lines.append((float(at), int(tokens), tuple(map(int, line["hash_ids"])), int(output)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name}, line {number}: not a request: {error}") from None
    if not lines:
        raise ValueError(f"{path.name} has no requests")
    block = _block_size([(tokens, len(blocks)) for _, tokens, blocks, _ in lines])
    return Trace(
        block,
        [
            Prompt(at / 1000, tokens, blocks[: tokens // block], output)
            for at, tokens, blocks, output in lines
            if tokens > 0
        ],
    )


def _block_size(prompts: list[tuple[int, int]]) -> int:
    """The block's size in tokens, a power of two, with which most prompts have as many blocks as they name."""
    sizes: Counter[int] = Counter()
    for tokens, blocks in prompts:
        sizes.update(size for size in (2**power for power in range(4, 13)) if -(-tokens // size) == blocks)
    return max(sizes, key=lambda size: (sizes[size], size == BLOCK), default=BLOCK)
