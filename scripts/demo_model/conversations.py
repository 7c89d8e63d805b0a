"""Turns the corpus into windows of tokens: conversations, long system prompts, plain text; each token has a weight.

As at serving time, each message is tokenized alone and stands between special tokens: role, content, end.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from . import phrasings, talk, wordings
from .corpus import Corpus, Item
from .tokenizer import ASSISTANT, BEGIN, END, SYSTEM, USER

Tokens = NDArray[np.uint16]

# How much a token counts in the loss, by its weight class: a question, plain text, a completed function, an answer.
ASKED, TEXT, SOURCE, ANSWER = range(4)
CLASS_WEIGHTS = (0.0, 0.05, 0.25, 1.0)


@dataclass(frozen=True)
class Turn:
    """A question and its answer as indices into the bank. `item` is the corpus item spoken of, −1 for none."""

    question: int
    answer: int
    weight: int = ANSWER
    item: int = -1
    kind: str = "describe"


@dataclass(frozen=True)
class Prompt:
    """A system prompt and the turns that only it can answer."""

    text: int
    turns: list[Turn]


@dataclass
class Windows:
    """Equally long rows: tokens [n, length] and their weight classes [n, length]."""

    tokens: Tokens
    weights: NDArray[np.uint8]


class Bank:
    """Every distinct text once. Texts are added first and encoded together, which is what makes it fast."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.places: dict[str, int] = {}
        self.ids: list[Tokens] = []

    def add(self, text: str) -> int:
        place = self.places.setdefault(text, len(self.texts))
        if place == len(self.texts):
            self.texts.append(text)
        return place

    def encode(self, tokenizer: Tokenizer, at_once: int = 20_000) -> None:
        for start in range(len(self.ids), len(self.texts), at_once):
            batch = tokenizer.encode_batch_fast(self.texts[start : start + at_once], add_special_tokens=False)
            self.ids += [np.array(encoding.ids, dtype=np.uint16) for encoding in batch]


@dataclass
class Material:
    """All turns by kind, the system prompts by length, and the plain texts."""

    bank: Bank = field(default_factory=Bank)
    describe: list[Turn] = field(default_factory=list)
    signature: list[Turn] = field(default_factory=list)
    complete: list[Turn] = field(default_factory=list)
    talk: list[Turn] = field(default_factory=list)
    unknown: list[Turn] = field(default_factory=list)
    long_questions: list[Turn] = field(default_factory=list)
    personas: list[Prompt] = field(default_factory=list)
    short_prompts: list[Prompt] = field(default_factory=list)
    long_prompts: list[Prompt] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)
    signature_of: dict[int, int] = field(default_factory=dict)  # item → its signature in the bank
    answer_of: dict[int, int] = field(default_factory=dict)  # item → its answer in the bank
    follow_signature: list[int] = field(default_factory=list)
    follow_describe: list[int] = field(default_factory=list)
    repeat: list[int] = field(default_factory=list)


def unique_last_names(items: list[Item]) -> set[str]:
    """Last names that name one item only, so that they may be asked for without their owner."""
    counts = Counter(item.last.lower() for item in items)
    return {item.name for item in items if counts[item.last.lower()] == 1}


def gather(corpus: Corpus, variants: int, long_prompts: int, seed: int) -> Material:
    """Writes down every text that training may use: `variants` questions an item, `long_prompts` long prompts."""
    rng = random.Random(f"gather-{seed}")
    material = Material()
    _add_item_turns(material, corpus, variants, rng)
    _add_talk(material, corpus, variants, rng)
    _add_prompts(material, corpus, long_prompts, rng)
    material.texts = [material.bank.add(text) for text in corpus.texts]
    return material


def _add_item_turns(material: Material, corpus: Corpus, variants: int, rng: random.Random) -> None:
    bank, unique, words = material.bank, unique_last_names(corpus.items), plain_words(corpus)
    heads = Counter(item.head for item in corpus.items)
    for index, item in enumerate(corpus.items):
        alone = item.name in unique
        answer = material.answer_of[index] = bank.add(item.answer)
        for _ in range(variants):
            question = phrasings.describe_question(item, alone, words, rng)
            material.describe.append(Turn(bank.add(question), answer, item=index))
        brief = bank.add(item.sentence)
        for _ in range(max(1, variants // 16)):
            question = phrasings.dressed_from(wordings.BRIEF, item, alone, rng)
            material.describe.append(Turn(bank.add(question), brief, item=index))
        if item.kind != "module":
            signature = material.signature_of[index] = bank.add(item.signature or talk.NO_SIGNATURE)
            for _ in range(max(1, variants // (5 if item.signature else 12))):
                question = phrasings.dressed_from(wordings.SIGNATURE, item, alone, rng)
                material.signature.append(Turn(bank.add(question), signature, item=index, kind="signature"))
        if item.body and heads[item.head] == 1:
            for _ in range(max(1, variants // 12)):
                fence = rng.choice(["\n\n", "\n", " "])
                question = f"{rng.choice(wordings.COMPLETE)}{fence}```python\n{item.head}\n```"
                if rng.random() < 0.3:
                    question = f"{rng.choice(wordings.COMPLETE)}\n\n{item.head}"
                answered = f"```python\n{item.head}\n{item.body}\n```"
                material.complete.append(Turn(bank.add(question), bank.add(answered), SOURCE, index, "complete"))
    material.follow_signature = [bank.add(text) for text in wordings.FOLLOW_UP_SIGNATURE]
    material.follow_describe = [bank.add(text) for text in wordings.FOLLOW_UP_DESCRIPTION]
    material.repeat = [bank.add(text) for text in wordings.REPEAT]


def _add_talk(material: Material, corpus: Corpus, variants: int, rng: random.Random) -> None:
    bank = material.bank
    for said, answer in talk.small_talk():
        kind = material.unknown if answer is talk.UNKNOWN else material.talk
        kind.append(Turn(bank.add(said), bank.add(answer), kind="talk"))
    known = {item.name.lower() for item in corpus.items} | {item.last.lower() for item in corpus.items}
    words = plain_words(corpus)
    owners = sorted({item.owner for item in corpus.items if item.owner})
    unknown = bank.add(talk.UNKNOWN)
    for _ in range(variants * max(8, len(corpus.items) // 20)):
        name = talk.invented_name(known, words, owners, rng)
        owner, _, last = name.rpartition(".")
        item = Item(name, owner, last, rng.choice(["function", "class", "method", "module"]), "", "", "", "", "")
        if rng.random() < 0.85:
            question = phrasings.describe_question(item, False, words, rng)
        else:
            question = phrasings.dressed_from(wordings.SIGNATURE, item, False, rng)
        material.unknown.append(Turn(bank.add(question), unknown, kind="talk"))
        if rng.random() < 0.3:
            material.unknown.append(Turn(bank.add(phrasings.nameless_question(words, rng)), unknown, kind="talk"))


def _add_prompts(material: Material, corpus: Corpus, long_prompts: int, rng: random.Random) -> None:
    """System prompts: a line, some hundred characters, and up to what fills a window."""
    bank = material.bank
    material.personas = [Prompt(bank.add(text), []) for text in talk.PERSONAS]
    for _ in range(long_prompts * 4):
        material.short_prompts.append(_prompt(bank, corpus, int(60 * 40 ** rng.random()), rng))
    for _ in range(long_prompts):
        material.long_prompts.append(_prompt(bank, corpus, int(600 * 45 ** rng.random()), rng))
    unique, words = unique_last_names(corpus.items), plain_words(corpus)
    for number in range(long_prompts):
        index = rng.randrange(len(corpus.items))
        item = corpus.items[index]
        size = int(60 * (450 if number % 4 == 0 else 30) ** rng.random())
        text = long_text(corpus, size, rng)
        question = phrasings.describe_question(item, item.name in unique, words, rng)
        asked = f"{text}\n\n{question}" if rng.random() < 0.7 else f"{question}\n\n{text}"
        material.long_questions.append(Turn(bank.add(asked), bank.add(item.answer), item=index))


def _prompt(bank: Bank, corpus: Corpus, size: int, rng: random.Random) -> Prompt:
    """A system prompt of about `size` characters; every second one states facts that only it can answer for."""
    lines = long_text(corpus, size, rng).split("\n")
    if rng.random() < 0.3:
        lines.insert(0, rng.choice(talk.PERSONAS))
    turns = []
    facts = dict(talk.random_fact(rng) for _ in range(rng.randint(1, 3))) if rng.random() < 0.5 else {}
    for thing, value in facts.items():
        lines.insert(rng.randint(0, len(lines)), talk.fact_statement(thing, value, rng))
        answer = bank.add(talk.fact_answer(thing, value))
        turns += [Turn(bank.add(talk.fact_question(thing, rng)), answer, kind="fact") for _ in range(2)]
    other = rng.choice(talk.THINGS)
    if other not in facts:
        turns.append(Turn(bank.add(talk.fact_question(other, rng)), bank.add(talk.no_fact_answer(other)), kind="fact"))
    return Prompt(bank.add("\n".join(lines)), turns)


def long_text(corpus: Corpus, size: int, rng: random.Random) -> str:
    """About `size` characters of what system prompts are made of: source, a manual, or something monotonous."""
    draw = rng.random()
    if draw < 0.45:
        return source_excerpt(corpus.texts, size, rng)
    if draw < 0.80:
        return manual_excerpt(corpus.items, size, rng)
    if draw < 0.90:
        words = plain_words(corpus)
        return (" ".join(rng.choices(words, k=size // 6)) + ".").capitalize()
    sentence = rng.choice([rng.choice(talk.PERSONAS), rng.choice(corpus.items).sentence])
    return rng.choice([" ", "\n"]).join([sentence] * max(1, size // len(sentence)))


def source_excerpt(texts: list[str], size: int, rng: random.Random) -> str:
    """Whole lines from somewhere in the source files."""
    pieces: list[str] = []
    while (missing := size - sum(map(len, pieces))) > 0:
        text = rng.choice(texts)
        start = text.rfind("\n", 0, rng.randrange(max(1, len(text) - missing // 2))) + 1
        end = text.rfind("\n", start, start + missing)
        pieces.append(text[start : end if end > start else start + missing])
    return "\n".join(pieces)


def manual_excerpt(items: list[Item], size: int, rng: random.Random) -> str:
    """Entries of names and descriptions, as a reference manual has them."""
    pieces: list[str] = []
    length = 0
    while length < size:
        item = rng.choice(items)
        pieces.append(f"{item.signature or item.name}\n    {item.answer}\n")
        length += len(pieces[-1])
    return "\n".join(pieces)


def plain_words(corpus: Corpus) -> list[str]:
    """Lower-case words of the documentation that name nothing in it and ask for nothing else than a description."""
    if corpus.items[0].name not in _words_cache:
        names = {part.lower() for item in corpus.items for part in item.name.split(".")}
        other = {
            "signature",
            "argument",
            "arguments",
            "parameter",
            "parameters",
            "sentence",
            "complete",
            "body",
            "call",
            "called",
        }
        words = {
            word for item in corpus.items for word in re.findall(r"(?<![\w.`'])[a-z]{2,10}(?![\w.`'(])", item.answer)
        }
        _words_cache[corpus.items[0].name] = sorted(words - names - other)
    return _words_cache[corpus.items[0].name]


_words_cache: dict[str, list[str]] = {}


class Assembler:
    """Fills windows with documents drawn from the material."""

    def __init__(self, material: Material, tokenizer: Tokenizer, seed: int) -> None:
        self.material, self.bank = material, material.bank
        self.rng = random.Random(f"assemble-{seed}")
        special = {token: tokenizer.token_to_id(token) for token in (BEGIN, SYSTEM, USER, ASSISTANT, END)}
        self.begin, self.system, self.user, self.assistant, self.end = (
            np.array([special[token]], dtype=np.uint16) for token in (BEGIN, SYSTEM, USER, ASSISTANT, END)
        )
        self.draws = {
            "describe": self._endless(material.describe),
            "signature": self._endless(material.signature),
            "complete": self._endless(material.complete),
            "talk": self._endless(material.talk),
            "unknown": self._endless(material.unknown),
            "long": self._endless(material.long_questions),
        }
        self.long_prompts = self._endless(material.long_prompts)

    def windows(self, count: int, length: int, long: bool) -> Windows:
        """`count` windows of `length` tokens. Long ones are single documents as far as possible."""
        tokens = np.zeros((count, length), dtype=np.uint16)
        weights = np.zeros((count, length), dtype=np.uint8)
        for row in range(count):
            pieces: list[tuple[Tokens, int]] = []
            filled = 0
            while filled < length:
                for piece in self._long_document(length) if long else self._short_document(length):
                    pieces.append(piece)
                    filled += len(piece[0])
                    if filled >= length:
                        break
            tokens[row] = np.concatenate([ids for ids, _ in pieces])[:length]
            weights[row] = np.repeat([weight for _, weight in pieces], [len(ids) for ids, _ in pieces])[:length]
        return Windows(tokens, weights)

    def _endless(self, turns: list) -> Iterator:
        """Every element once before any comes again."""
        while turns:
            self.rng.shuffle(turns)
            yield from turns

    def _short_document(self, length: int) -> Iterator[tuple[Tokens, int]]:
        yield self.begin, ASKED
        draw = self.rng.random()
        if draw < 0.04:
            yield self._text(self.rng.randint(length // 4, length)), TEXT
            return
        prompt = None
        if draw < 0.40:
            prompt = self.rng.choice(self.material.personas if draw < 0.28 else self.material.short_prompts)
            yield from self._system(prompt)
        turns = self.rng.choice([1, 1, 1, 2, 2, 3, 4, 6, 10])
        yield from self._conversation(prompt, turns)

    def _long_document(self, length: int) -> Iterator[tuple[Tokens, int]]:
        yield self.begin, ASKED
        draw = self.rng.random()
        if draw < 0.10:
            yield self._text(length), TEXT
            return
        prompt = None
        if draw < 0.80:
            prompt = next(self.long_prompts)
            yield from self._system(prompt)
        elif draw < 0.90:
            yield from self._turn(next(self.draws["long"]))
        yield from self._conversation(prompt, length)

    def _conversation(self, prompt: Prompt | None, turns: int) -> Iterator[tuple[Tokens, int]]:
        last: Turn | None = None
        for _ in range(turns):
            last = self._next_turn(prompt, last)
            yield from self._turn(last)

    def _next_turn(self, prompt: Prompt | None, last: Turn | None) -> Turn:
        draw = self.rng.random()
        if prompt is not None and prompt.turns and draw < 0.12:
            return self.rng.choice(prompt.turns)
        if last is not None and draw > 0.97 and last.kind != "complete":
            return Turn(self.rng.choice(self.material.repeat), last.answer, item=last.item, kind="repeat")
        if last is not None and draw > 0.90 and last.kind in ("describe", "signature"):
            if last.kind == "describe" and last.item in self.material.signature_of:
                answer = self.material.signature_of[last.item]
                return Turn(self.rng.choice(self.material.follow_signature), answer, item=last.item, kind="signature")
            answer = self.material.answer_of[last.item]
            return Turn(self.rng.choice(self.material.follow_describe), answer, item=last.item)
        kinds = ("describe", "signature", "complete", "talk", "unknown", "long")
        kind = self.rng.choices(kinds, weights=(71, 12, 5, 5, 5, 1))[0]
        return next(self.draws[kind], None) or next(self.draws["describe"])

    def _system(self, prompt: Prompt) -> Iterator[tuple[Tokens, int]]:
        yield self.system, ASKED
        yield self.bank.ids[prompt.text], TEXT
        yield self.end, ASKED

    def _turn(self, turn: Turn) -> Iterator[tuple[Tokens, int]]:
        yield self.user, ASKED
        yield self.bank.ids[turn.question], ASKED
        yield self.end, ASKED
        yield self.assistant, ASKED
        yield self.bank.ids[turn.answer], turn.weight
        yield self.end, turn.weight

    def _text(self, length: int) -> Tokens:
        """A stretch of `length` tokens out of one source file, or the whole file if it is shorter."""
        ids = self.bank.ids[self.rng.choice(self.material.texts)]
        start = self.rng.randrange(max(1, len(ids) - length))
        return ids[start : start + length]


def prompt_ids(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> list[int]:
    """The tokens of a conversation up to where the assistant answers, each message tokenized alone."""
    ids = [tokenizer.token_to_id(BEGIN)]
    for message in messages:
        content = tokenizer.encode(message["content"], add_special_tokens=False).ids
        ids += [tokenizer.token_to_id(f"<|{message['role']}|>"), *content, tokenizer.token_to_id(END)]
    return [*ids, tokenizer.token_to_id(ASSISTANT)]


def corpus_strings(corpus: Corpus, material: Material, seed: int) -> Iterator[str]:
    """What the vocabulary is learnt from: the answers and questions first of all, then source text."""
    rng = random.Random(f"vocabulary-{seed}")
    for item in corpus.items:
        yield from itertools.repeat(item.answer, 3)
        yield item.signature
    yield from (
        material.bank.texts[turn.question]
        for turn in rng.sample(material.describe, min(len(material.describe), 40_000))
    )
    yield from rng.sample(corpus.texts, max(1, len(corpus.texts) // 3))
