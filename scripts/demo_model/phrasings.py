"""How people ask: the ways of asking that the model is trained on, and those that it only meets in its test.

A question is put together from a core ("What does {x} do"), a way of naming the thing, and what people say around it.
The cores in `UNSEEN` never occur in training; `assert_disjoint` holds that.
"""

from __future__ import annotations

import random
import re

from .cores import ASKING, TELLING, UNSEEN
from .corpus import Item
from .wordings import AFTER, BEFORE, BRIEF, NAMELESS, SIGNATURE

_ASKED = [(core, "?") for core in ASKING.splitlines()] + [(core, ".") for core in TELLING.splitlines()]


def describe_question(item: Item, unique_last: bool, words: list[str], rng: random.Random) -> str:
    """One of the trained ways to ask for a description, or now and then a name among `words` that say nothing."""
    core, mark = rng.choice(_ASKED) if rng.random() < 0.85 else (_babble(words, rng), rng.choice("?.!"))
    return _dressed(core, mark, name_it(item, unique_last, rng), rng)


def plain_question(item: Item, rng: random.Random) -> str:
    """A trained core with the plain name and nothing around it: what the test calls a seen phrasing."""
    core, mark = rng.choice([pair for pair in _ASKED if " " in pair[0]])
    return core.replace("{x}", item.name) + (mark if core[0].isupper() else "")


def unseen_question(item: Item, rng: random.Random) -> str:
    """A way of asking that training never shows."""
    return rng.choice(UNSEEN).replace("{x}", item.name)


def dressed_from(phrases: list[str], item: Item, unique_last: bool, rng: random.Random) -> str:
    """One of `phrases`, each of which brings its own mark, sometimes with a word before it."""
    question = rng.choice(phrases).replace("{x}", name_it(item, unique_last, rng))
    return f"{rng.choice(BEFORE)} {question}" if rng.random() < 0.2 else question


def name_it(item: Item, unique_last: bool, rng: random.Random) -> str:
    """The ways to write a name: bare, quoted, called, or said with its owner ("dedent in textwrap")."""
    called = "()" if item.kind in ("function", "method") and rng.random() < 0.25 else ""
    name = f"{item.name}{called}"
    draw = rng.random()
    if draw < 0.52:
        return name
    if draw < 0.80:
        mark = rng.choice(["`", "`", "`", "`", "'", '"', "**", "``"])
        return f"{mark}{name}{mark}"
    if draw < 0.88:
        kind = "built-in" if not item.owner and item.kind == "function" else item.kind
        return rng.choice(
            [f"the {kind} {name}", f"the {name} {kind}", f"Python's {name}", f"the Python {kind} `{name}`"]
        )
    if draw < 0.96 and item.owner:
        return rng.choice(
            [
                f"{item.last} in {item.owner}",
                f"{item.last} from {item.owner}",
                f"`{item.last}` of `{item.owner}`",
                f"{item.owner}'s {item.last}",
                f"the {item.kind} {item.last} of {item.owner}",
            ]
        )
    if unique_last and len(item.last) > 3:
        return rng.choice([f"{item.last}{called}", f"`{item.last}{called}`"])
    return name


def _dressed(core: str, mark: str, name: str, rng: random.Random) -> str:
    """Adds what people say around a question, then varies its case, marks and spelling, never those of the name."""
    if rng.random() < 0.12:
        core = _misspelled(core, rng)
    if rng.random() < 0.3:
        core = core[0].lower() + core[1:]
    before = rng.choice(BEFORE) + " " if rng.random() < 0.3 else ""
    after = " " + rng.choice(AFTER) if rng.random() < 0.3 else ""
    if rng.random() < 0.05:
        before, after = rng.choice(BEFORE) + " " + before, after + " " + rng.choice(AFTER)
    end = mark if rng.random() < 0.7 else rng.choice(["", "", "?", ".", "!", "??", " ?", "...", "?!", "\n"])
    whole = f"{before}{core}{after}{end}" if not after or after[1].islower() else f"{before}{core}{end}{after}"
    draw = rng.random()
    if draw < 0.12:
        whole = whole.lower()
    elif draw < 0.14:
        whole = whole.upper().replace("{X}", "{x}")
    return whole.replace("{x}", name, 1)


def _babble(words: list[str], rng: random.Random) -> str:
    """A name between random words: whatever people say around a name, it is the name that counts."""
    said = rng.choices(words, k=rng.randint(2, 9))
    said.insert(rng.randint(0, len(said)), "{x}")
    text = " ".join(said)
    if rng.random() < 0.4:
        text = text.replace(" {x}", rng.choice([": {x}", ", {x}", " -- {x}", "; {x}", ". {x}"]))
    if rng.random() < 0.3:
        text = text.replace("{x} ", rng.choice(["{x}, ", "{x}. ", "{x}; ", "{x}: ", "{x}! "]))
    return text[0].upper() + text[1:] if rng.random() < 0.7 and text[0] != "{" else text


def nameless_question(words: list[str], rng: random.Random) -> str:
    """Something in plain words that names nothing the model could know."""
    opening = rng.choice(NAMELESS)
    text = f"{opening} {' '.join(rng.choices(words, k=rng.randint(1, 8)))}".strip()
    return f"{text}{rng.choice(['?', '?', '.', ''])}"


def _misspelled(core: str, rng: random.Random) -> str:
    """Drops, doubles or swaps a letter of one word, as fingers do."""
    words = core.split(" ")
    places = [i for i, word in enumerate(words) if "{x}" not in word and len(word) > 3]
    if not places:
        return core
    place = rng.choice(places)
    word = words[place]
    at = rng.randrange(1, len(word) - 1)
    words[place] = rng.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :],
        ]
    )
    return " ".join(words)


def assert_disjoint() -> None:
    """No test phrasing may be a trained one, whatever their case and marks."""

    def bare(phrase: str) -> str:
        return " ".join(re.sub(r"[^a-z{}' ]", " ", phrase.lower()).split())

    trained = {bare(phrase) for phrase in [core for core, _ in _ASKED] + BRIEF + SIGNATURE}
    assert not trained & {bare(phrase) for phrase in UNSEEN}


assert_disjoint()
