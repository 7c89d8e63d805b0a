"""Generators of traffic for `cache_replay`, small and seeded, each after what is published of its kind.

Mooncake (FAST 2025) describes three traces: conversations (12,000 tokens a request, 40 % of which were seen before),
tools and agents (8,600, 59 %), and a synthetic mix of ShareGPT, L-Eval and LooGLE (15,300, 66 %). BurstGPT and
Azure's traces have lengths with heavy tails, and bursts. Alibaba's (ATC 2025) has most of its reuse in few requests.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.cache_traces import BLOCK, Prompt, Trace


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


def tool_agents(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Tools and agents: few long system prompts shared by very many requests with short ends; some go on."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    systems, weights = [(writer.new(), writer.length(5500, 0.6)) for _ in range(400)], _zipf(400, 1.0)
    while len(writer.prompts) < requests:
        at = draw.uniform(0.0, seconds)
        said = [draw.choices(systems, cum_weights=weights)[0], (writer.new(), writer.length(2200, 0.9))]
        while True:
            writer.say(at, said)
            if draw.random() > 0.25:
                break
            at += draw.lognormvariate(2.5, 0.8)
            said = [*said, (writer.new(), writer.length(800, 1.0))]
    return writer.trace()


def question_sets(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Benchmarks shuffled together: long documents with some questions each, at any time, beside short chats."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    while len(writer.prompts) < requests:
        kind = draw.random()
        long = kind < 0.19
        document = (writer.new(), writer.length(30000, 0.4) if long else writer.length(11000, 0.7))
        questions = draw.randint(2, 6) if long else draw.randint(1, 5) if kind < 0.5 else 0
        for _ in range(questions):
            writer.say(draw.uniform(0.0, seconds), [document, (writer.new(), writer.length(60))])
        if not questions:
            at, said = draw.uniform(0.0, seconds), [(writer.new(), writer.length(60, 1.2))]
            while draw.random() < 0.7:
                writer.say(at, said)
                said = [*said, (writer.new(), writer.length(300, 1.0))]
                at += draw.lognormvariate(4.0, 0.8)
    return writer.trace()


def single_calls(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Calls of programs, none of which has anything in common with another, and a few that are sent again."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    for number in range(requests):
        call = [(writer.new(), writer.length(3000, 1.0))]
        writer.say(seconds * number / requests, call)
        if draw.random() < 0.01:
            writer.say(seconds * number / requests + draw.uniform(1.0, 30.0), call)
    return writer.trace()


def long_pauses(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Conversations of many turns, whose people leave for as long as it takes to fill the cache many times."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    while len(writer.prompts) < requests:
        at = draw.uniform(-0.2 * seconds, 0.9 * seconds)
        said = [(writer.new(), writer.length(2500, 1.0))]
        for _ in range(1 + int(draw.paretovariate(1.1))):
            if 0.0 <= at <= seconds:
                writer.say(at, said)
            at += draw.lognormvariate(3.0, 0.7) if draw.random() < 0.5 else draw.lognormvariate(6.3, 0.8)
            said = [*said, (writer.new(), writer.length(600, 1.0))]
            if at > seconds or len(said) > 60:
                break
    return writer.trace()


def bursts(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Chat, and now and then a batch at once: some hundred long documents, most of which are read only once."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    for prompt in chat(seed + 2, requests // 2, seconds).prompts:
        writer.prompts.append((prompt.at, prompt.tokens, tuple(-block for block in prompt.blocks)))
    earlier: list[list[tuple[object, int]]] = []
    while len(writer.prompts) < requests:
        again = earlier and draw.random() < 0.25
        batch = draw.choice(earlier) if again else None
        if batch is None:
            batch = [(writer.new(), writer.length(7000, 0.7)) for _ in range(draw.randint(80, 400))]
            earlier.append(batch)
        at, instructions = draw.uniform(0.0, seconds), (writer.new(), writer.length(800))
        for number, document in enumerate(batch):
            writer.say(at + 0.05 * number, [document, instructions])
    return writer.trace()


def drift(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Documents in the news: each is asked about for a while, most early, and then no more."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    instructions = (writer.new(), 700)
    while len(writer.prompts) < requests:
        begun = draw.uniform(-0.1 * seconds, seconds)
        document = (writer.new(), writer.length(6000, 0.7))
        lasts = draw.lognormvariate(5.0, 1.0)
        for _ in range(int(draw.paretovariate(0.9))):
            at = begun + draw.expovariate(1.0 / lasts)
            if 0.0 <= at <= seconds and len(writer.prompts) < requests:
                writer.say(at, [instructions, document, (writer.new(), writer.length(150))])
    return writer.trace()


def heavy_tails(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Lengths, turns and arrivals with heavy tails: most prompts are short, few ones hold most of the tokens."""
    writer, draw = _Writer(seed), random.Random(seed + 1)
    at = 0.0
    systems, weights = [(writer.new(), writer.length(1200, 0.9)) for _ in range(300)], _zipf(300, 1.2)
    while len(writer.prompts) < requests:
        at += draw.gammavariate(0.25, 4.0) * seconds * 1.6 / requests
        begun = at
        said = [draw.choices(systems, cum_weights=weights)[0]] if draw.random() < 0.6 else []
        said.append((writer.new(), min(120_000, int(300 * draw.paretovariate(0.8)))))
        for _ in range(min(40, int(draw.paretovariate(1.3)))):
            writer.say(begun, said)
            begun += draw.lognormvariate(3.5, 1.3)
            said = [*said, (writer.new(), min(30_000, int(120 * draw.paretovariate(0.9))))]
    return writer.trace()


def mixed(seed: int, requests: int = 8000, seconds: float = 3600.0) -> Trace:
    """Something of each of several kinds at once, as on a replica with many tenants."""
    prompts: list[tuple[float, int, tuple[int, ...]]] = []
    kinds = (chat, agents, documents, tool_agents, question_sets, single_calls, long_pauses)
    for number, kind in enumerate(kinds):
        for prompt in kind(seed + 10 + number, requests // len(kinds), seconds).prompts:
            blocks = tuple(block * len(kinds) + number for block in prompt.blocks)
            prompts.append((prompt.at, prompt.tokens, blocks))
    return Trace(BLOCK, [Prompt(*prompt) for prompt in sorted(prompts)])


GENERATORS: Mapping[str, Callable[[int], Trace]] = {
    "chat": chat,
    "agents": agents,
    "documents": documents,
    "system prompts": system_prompts,
    "scans": scans,
    "tool agents": tool_agents,
    "question sets": question_sets,
    "single calls": single_calls,
    "long pauses": long_pauses,
    "bursts": bursts,
    "drift": drift,
    "heavy tails": heavy_tails,
    "mixed": mixed,
}


def generated(seed: int) -> Iterator[tuple[str, Trace]]:
    """One trace of each kind."""
    for name, generator in GENERATORS.items():
        yield name, generator(seed)
