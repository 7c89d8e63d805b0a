"""What people ask for when they need a tool, and in which words."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

from .tools import Offer, Parameter
from .values import TEXTS, draw, in_words, on_a_clock, written
from .vocabulary import AFTER, BEFORE, FREE, NUMBERS, REWORDED, STRINGS

_PLACE = re.compile(r"\{(\w+)(?::(\w+))?(?:=([^}]*))?\}")
"""`{key}`, or `{key=words}` and `{key:value=words}`, whose words stand for a value."""

_MAYBE = re.compile(r"\[([^\]]*)\]")


def _drawn(parameter: Parameter, offered: Offer, rng: random.Random) -> tuple[str, Any]:
    """A value and how the question writes it: maybe in quotes, or of another kind than one would think."""
    shown, value = draw(parameter.source, rng)
    if parameter.source in ("date", "time", "currency", "language"):
        return _as_described(str(value), parameter, offered, rng)
    if parameter.source in ("percent", "mins") or offered.concept.group.startswith("extract"):
        return shown, value
    if isinstance(value, int) and not isinstance(value, bool):
        if 1 <= value <= 12 and parameter.source == "int" and rng.random() < 0.25:
            return NUMBERS[value - 1], value
        if value >= 1000 and rng.random() < 0.06 and parameter.source == "money":
            return f"{value:,}", value
        return shown, value
    if not isinstance(value, str):
        return shown, value
    if rng.random() < 0.07:
        shown, value = draw(rng.choice(STRINGS), rng)
    if shown == value and rng.random() < 0.15 and not set(value) & set("\"'“”"):
        shown = rng.choice((f'"{value}"', f'"{value}"', f"'{value}'", f"“{value}”", f"`{value}`"))
    return shown, value


def _as_described(value: str, parameter: Parameter, offered: Offer, rng: random.Random) -> tuple[str, str]:
    """A day, a time, a currency or a language: rewritten if the parameter's description names a form, else as it is."""
    schema = offered.definition["parameters"]["properties"][offered.keys[parameter.key]]
    formal = re.search(r"YYYY|ISO|HH:MM|24|code", schema.get("description", ""))
    plainly = rng.random() < 0.6
    if parameter.source == "date":
        if formal:
            return (value if plainly else in_words(value, rng)), value
        said = value if rng.random() < 0.7 else in_words(value, rng) if rng.random() < 0.3 else rng.choice(TEXTS["day"])
        return said, said
    if parameter.source == "time":
        if formal:
            return (value if plainly else on_a_clock(value, rng)), value
        said = value if plainly else on_a_clock(value, rng)
        return said, said
    if parameter.source == "currency":
        called = [pair.split("=")[0] for pair in TEXTS["money_names"] if pair.endswith(f"={value}")]
        return (rng.choice(called) if called and not plainly and formal else value), value
    codes = dict(pair.split("=") for pair in TEXTS["language_codes"])
    return (value, codes[value]) if formal and value in codes else (value, value)


@dataclass(frozen=True)
class Ask:
    """Something asked for, and the call's arguments. `opens`, `ends`: it begins or ends with a value as it is."""

    text: str
    arguments: dict[str, Any]
    opens: bool
    ends: bool


def _otherwise(wanted: str, rng: random.Random) -> str:
    """The same in other words."""
    fitting = [(pattern, after) for pattern, after in REWORDED if pattern.search(wanted)]
    for pattern, after in rng.sample(fitting, min(len(fitting), rng.randint(1, 2))):
        said = rng.choice(after)
        wanted = pattern.sub(lambda _, said=said: said, wanted, count=1)
    return wanted


def _plain_ask(offered: Offer, rng: random.Random) -> str:
    """What the definition itself says, and values in a row."""
    parameters = [
        one for one in offered.concept.parameters if one.source != "bool" and (one.required or rng.random() < 0.3)
    ]
    described = str(offered.definition.get("description") or offered.definition["name"]).split(".")[0]
    named = re.sub(r"([a-z])([A-Z])", r"\1 \2", offered.definition["name"]).replace("_", " ").replace("-", " ").lower()
    first = rng.choice(
        (
            described[0].lower() + described[1:],
            named,
            named,
            f"use {offered.definition['name']}",
            f"call {offered.definition['name']}",
            f"do a {named}",
            f"I need {named}",
        )
    )
    first = first.replace("{", "(").replace("[", "(").replace("]", ")")
    form = rng.choice(("{key} {value}", "{value}", "{value}", "{key}: {value}", "{key} = {value}"))
    parts = [
        form.replace("{value}", f"{{{one.key}}}").replace(
            "{key}", re.sub(r"([A-Z])", r" \1", offered.keys[one.key].replace("_", " ")).lower()
        )
        for one in parameters
    ]
    return first + (
        rng.choice((": ", " with ", " for ", ", ", " ")) + rng.choice((", ", " and ", ", ")).join(parts)
        if parts
        else ""
    )


def ask(offered: Offer, rng: random.Random) -> Ask:
    """A question for an offered tool."""
    wanted = (
        rng.choice(offered.concept.asks)
        if rng.random() < 0.9 or offered.concept.group.startswith("extract")
        else _plain_ask(offered, rng)
    )
    if rng.random() < 0.5:
        wanted = _otherwise(wanted, rng)
    wanted = _MAYBE.sub(lambda match: match.group(1) if rng.random() < 0.5 else "", wanted)
    by_key = {parameter.key: parameter for parameter in offered.concept.parameters}
    drawn: dict[str, Any] = {}

    def fill(match: re.Match[str]) -> str:
        parameter = by_key[match.group(1)]
        if parameter.choices:
            offers = offered.definition["parameters"]["properties"][offered.keys[parameter.key]]["enum"]
            at = parameter.choices.index(match.group(2)) if match.group(3) else rng.randrange(len(offers))
            drawn[parameter.key] = offers[at]
            value = parameter.choices[at].replace("_", " ") if rng.random() < 0.8 else parameter.choices[at]
            return match.group(3) or rng.choice(
                (value, value, value, value.capitalize(), value.upper() if len(value) < 4 else value)
            )
        if match.group(3) is not None:
            drawn[parameter.key] = match.group(2) != "false"
            return match.group(3)
        shown, value = _drawn(parameter, offered, rng)
        drawn[parameter.key] = str(value) if parameter.key in offered.as_text else value
        return shown.replace("[", "(").replace("]", ")") if parameter.source != "code_text" else shown

    question = _PLACE.sub(fill, wanted)
    arguments = {
        offered.keys[parameter.key]: drawn[parameter.key]
        for parameter in offered.concept.parameters
        if parameter.key in drawn
    }
    order = list(offered.definition["parameters"]["properties"])
    last = re.search(r"\{(\w+)(?::\w+)?\}$", wanted)
    ends = last is not None and by_key[last.group(1)].source in FREE and question[-1:] not in "\"'”"
    return Ask(question, {key: arguments[key] for key in order if key in arguments}, wanted.startswith("{"), ends)  # fmt: skip


def polished(asked: Ask, rng: random.Random) -> str:
    """A question as somebody types it, sometimes with a sentence beside it that asks nothing."""
    text = _typed(asked, rng)
    kind = rng.random()
    if kind < 0.12:
        return f"{written(rng, 'context')} {text[0].upper()}{text[1:]}"
    if kind < 0.18 and text[-1:] in "?.!" and not asked.ends:
        return f"{text} {written(rng, 'context')}"
    return text


def _typed(asked: Ask, rng: random.Random) -> str:
    question = asked.text
    if question.endswith("?"):
        before = rng.choice(
            (
                "",
                "",
                "",
                "",
                "",
                "",
                "",
                "hey, ",
                "hi! ",
                "ok, ",
                "so ",
                "please tell me: ",
                "quick question: ",
                "tell me, ",
                "and ",
                "sorry, ",
                "my friend asks: ",
                "I wonder, ",
                "do you know, ",
                "hello, ",
                "for my trip: ",
                "one more: ",
            )
        )
        text = before + question
        if rng.random() < 0.12 and not asked.ends:
            text = text.rstrip("?") + rng.choice(("", " please?", " please", "??"))
    else:
        own = (
            asked.opens or question.startswith(("I ", "the ", "we ", "my ", "it", "at ")) or not question[:1].islower()
        )
        before = "" if own else rng.choice(BEFORE)
        text = before + question
        if rng.random() < 0.4 and not own and not asked.ends:
            text += rng.choice(AFTER)
        if before.startswith(("can", "could", "would")):
            text += rng.choice(("?", "?", ""))
        elif rng.random() < 0.6 and text[-1:] not in "?!.":
            text += "."
    if before or not asked.opens:
        return text[0].upper() + text[1:] if rng.random() < 0.75 else text
    return text
