"""Traces for `cache_replay`: a file in Mooncake's format, and generators of other traffic.

A line of a file is a JSON object with `timestamp` (ms), `input_length` (tokens) and `hash_ids`, one for each block of
the prompt, the last of which may be partial; equal hashes mean equal prefixes.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK = 512
"""Tokens of a block in generated traces."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt. `blocks` are its whole blocks: what is not filled is not cached."""

    at: float
    tokens: int
    blocks: tuple[int, ...]


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
            lines.append((float(line.get("timestamp", 0)), int(line["input_length"]), tuple(line["hash_ids"])))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name}, line {number}: not a request: {error}") from None
    if not lines:
        raise ValueError(f"{path.name} has no requests")
    block = _block_size([(tokens, len(blocks)) for _, tokens, blocks in lines])
    return Trace(
        block, [Prompt(at / 1000, tokens, blocks[: tokens // block]) for at, tokens, blocks in lines if tokens > 0]
    )


def _block_size(prompts: list[tuple[int, int]]) -> int:
    """The block's size in tokens, a power of two, with which most prompts have as many blocks as they name."""
    sizes: Counter[int] = Counter()
    for tokens, blocks in prompts:
        sizes.update(size for size in (2**power for power in range(4, 13)) if -(-tokens // size) == blocks)
    return max(sizes, key=lambda size: (sizes[size], size == BLOCK), default=BLOCK)


class _Writer:
    """Makes prompts of pieces of text, of which the same begin with the same blocks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._ids = itertools.count(1)
        self._known: dict[tuple[int, object], int] = {}
        self.prompts: list[tuple[float, int, tuple[int, ...]]] = []

    def say(self, at: float, pieces: Sequence[tuple[object, int]]) -> None:
        """A request at this time, of (piece, its tokens)."""
        blocks: list[int] = []
        parent, filled, inside = 0, 0, []
        for piece, tokens in pieces:
            inside.append(piece)
            filled += tokens
            while filled >= BLOCK:
                key = (parent, (tuple(inside), len(blocks)))
                parent = self._known.setdefault(key, len(self._known) + 1)
                blocks.append(parent)
                filled -= BLOCK
                inside = [piece] if filled else []
        self.prompts.append((at, sum(tokens for _, tokens in pieces), tuple(blocks)))

    def new(self) -> int:
        """A piece that nobody said before."""
        return -next(self._ids)

    def length(self, median: float, spread: float = 0.8) -> int:
        """Tokens of a piece, lognormal."""
        return max(8, int(self.random.lognormvariate(0.0, spread) * median))

    def trace(self) -> Trace:
        """All that was said, in order of time."""
        self.prompts.sort(key=lambda prompt: prompt[0])
        return Trace(BLOCK, [Prompt(*prompt) for prompt in self.prompts])


def _zipf(count: int, exponent: float) -> list[float]:
    """Cumulative weights of a Zipf distribution."""
    return list(itertools.accumulate(1.0 / rank**exponent for rank in range(1, count + 1)))


def chat(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Conversations under a few system prompts, with the pauses of people; most have one turn."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    systems, weights = [(writer.new(), writer.length(1500)) for _ in range(20)], _zipf(20, 1.0)
    while len(writer.prompts) < requests:
        at = draw.uniform(0.0, seconds)
        said = [draw.choices(systems, cum_weights=weights)[0], (writer.new(), writer.length(1500, 1.3))]
        pause = draw.lognormvariate(4.5, 0.6)
        while True:
            writer.say(at, said)
            if draw.random() > min(0.85, 0.4 + 0.1 * len(said)) or at > seconds:
                break
            at += pause * draw.lognormvariate(0.0, 0.7)
            said += [(writer.new(), writer.length(400)), (writer.new(), writer.length(200, 1.2))]
    return writer.trace()


def agents(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Agents with tools: long instructions, many steps a few seconds apart, children that start from their parent's
    context; between them one-time calls for titles and summaries."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    systems = [(writer.new(), writer.length(9000, 0.4)) for _ in range(6)]
    while len(writer.prompts) < requests:
        start = draw.uniform(0.0, seconds)
        runs = [(start, [draw.choice(systems), (writer.new(), writer.length(1500))], draw.randint(3, 40))]
        while runs:
            at, said, steps = runs.pop()
            for _ in range(steps):
                writer.say(at, said)
                if draw.random() < 0.3:
                    writer.say(at, [(writer.new(), writer.length(3000, 1.0))])
                if draw.random() < 0.03 and len(runs) < 3:
                    runs.append((at, [*said, (writer.new(), 300)], draw.randint(2, 12)))
                at += draw.lognormvariate(2.2, 0.8) if draw.random() < 0.95 else draw.uniform(60.0, 600.0)
                said = [*said, (writer.new(), writer.length(250)), (writer.new(), writer.length(700, 1.2))]
    return writer.trace()


def documents(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Questions about documents: the same instructions, one of many documents (Zipf), a question nobody asked before;
    some ask again about the same one."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    instructions = (writer.new(), 1100)
    library, weights = [(writer.new(), writer.length(6000)) for _ in range(4000)], _zipf(4000, 0.8)
    while len(writer.prompts) < requests:
        at = draw.uniform(0.0, seconds)
        document = draw.choices(library, cum_weights=weights)[0]
        while True:
            writer.say(at, [instructions, document, (writer.new(), writer.length(120))])
            if draw.random() > 0.35:
                break
            at += draw.lognormvariate(4.0, 0.8)
    return writer.trace()


def system_prompts(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Applications with a system prompt each (Zipf), and one short question a request."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    systems, weights = [(writer.new(), writer.length(4000, 0.6)) for _ in range(5000)], _zipf(5000, 0.9)
    for _ in range(requests):
        system = draw.choices(systems, cum_weights=weights)[0]
        writer.say(draw.uniform(0.0, seconds), [system, (writer.new(), writer.length(300, 1.0))])
    return writer.trace()


def scans(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Chat, and beside it a batch that reads a long list of documents once, and another that reads its list again and
    again."""
    writer = _Writer(seed)
    for prompt in chat(seed + 2, requests // 2, seconds).prompts:
        writer.prompts.append((prompt.at, prompt.tokens, tuple(-block for block in prompt.blocks)))
    for number in range(requests // 4):
        writer.say(seconds * (0.2 + 0.3 * number / (requests // 4)), [(writer.new(), writer.length(8000, 0.5))])
    again = [(writer.new(), writer.length(8000, 0.5)) for _ in range(requests // 16)]
    for number in range(requests // 4):
        writer.say(seconds * number / (requests // 4), [again[number % len(again)], (writer.new(), 100)])
    return writer.trace()


GENERATORS: Mapping[str, Callable[[int], Trace]] = {
    "chat": chat,
    "agents": agents,
    "documents": documents,
    "system prompts": system_prompts,
    "scans": scans,
}


def generated(seed: int) -> Iterator[tuple[str, Trace]]:
    """One trace of each kind."""
    for name, generator in GENERATORS.items():
        yield name, generator(seed)
