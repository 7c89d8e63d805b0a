"""Conversations with tools: who asks what, what is called, what the tools say, and what is answered."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from .questions import ask, polished
from .tools import Concept, Offer, composed, concepts, idle_questions, neighbour, noun_of, offer, resemble
from .values import WORDS, code, filled, kinds_of_text, money, name, title, word, words
from .vocabulary import ATTRIBUTES

Message = dict[str, Any]

GROUPS_THAT_KNOW = frozenset(
    ["search", "wiki", "docs", "fetch", "summary", "jokeapi", "news", "define", "synonym", "countryinfo", "population", "book", "movie", "image", "python", "shell", "calc", "distance", "langdetect", "sports", "standings", "medicine", "recipe", "music", "contact", "hr2", "user", "lead", "species", "spacepos", "molecule", "newssearch", "bookinfo", "booksby", "filmsearch", "playerinfo", "lawsearch", "paper", "docsearch", "whereto", "recommend", "genealogy", "stacktrace", "nutrition", "trending", "plantcare", "snippet", "genimage", "rewrite", "tts", "postsocial", "games", "trademark", "companyreg", "lookup", "sun", "classify", "extract1", "extract2", "extract3", "extract4", "note", "todo"]
)  # fmt: skip
"""Groups of the table that a general question or a statement could be meant for."""
_ANSWERS = {
    "hello": "Hello! How can I help you?", "how": "I am fine, thank you. How can I help you?", "thanks": "You are welcome.", "bye": "Goodbye!",
    "ok": "All right. How can I help you?", "who": "I am a small demo model that calls tools.",
    "joke": "Why did the token stay in the cache? It had already been paid for.", "poem": "I am too small for that: I only call tools.",
    "feel": "I see. How can I help you?", "know": "I do not know that. I am a small model that calls tools, and none of them is for this.",
}  # fmt: skip
NO_TOOL = "I have no tool for that."
_SYSTEMS = [
    "You are a helpful assistant. ",
    " You are a helpful assistant with access to tools. ",
    " Answer the user's questions. ",
    " Use the tools when they are needed. ",
    "\nBe brief. ",
    " You are an agent. ",
    " You are a friendly assistant. Use a tool if one fits, otherwise answer. ",
    " Help the user. ",
    " You answer in short sentences. ",
    "\nYou are a customer service agent. Be polite. ",
    " Call functions to answer the user. ",
    " Don't make assumptions about what values to plug into functions. ",
    "\nYou have tools. Use them. ",
    " You are a coding assistant. ",
    " Always reply in English. ",
    " Extract the user's details.",
]
_STATES = [
    "ok",
    "done",
    "created",
    "sent",
    "updated",
    "deleted",
    "queued",
    "accepted",
    "open",
    "closed",
    "active",
    "running",
    "shipped",
    "delivered",
    "pending",
    "sunny",
    "rainy",
    "cloudy",
]


@dataclass(frozen=True)
class Conversation:
    """`messages` in the shape that chat templates take, `tools` likewise. An assistant message without `learn` is read
    only: the model is not to write it."""

    messages: list[Message]
    tools: list[dict[str, Any]]


_CHAT = kinds_of_text("chat.txt")


def small_talk(offered: list[Offer], rng: random.Random) -> tuple[str, str]:
    """What needs no tool, and its answer."""
    kinds = list(_CHAT)
    weights = [3.0 if kind == "know" else 1.0 for kind in kinds]
    knowing = any(one.concept.tags & GROUPS_THAT_KNOW for one in offered)
    kind = rng.choices(
        kinds,
        [
            0.0 if knowing and k in ("know", "joke", "poem", "feel", "who") else w
            for k, w in zip(kinds, weights, strict=True)
        ],
    )[0]
    if kind == "know" and rng.random() < 0.4:
        domains = [one.concept.domain for one in offered if one.concept.domain in idle_questions()]
        domain = rng.choice(domains) if domains and rng.random() < 0.7 else rng.choice(list(idle_questions()))
        return rng.choice(idle_questions()[domain]), _ANSWERS["know"]
    text = filled(rng.choice(_CHAT[kind]), rng)
    if rng.random() < 0.25 and kind in ("thanks", "bye", "ok", "hello", "feel"):
        text += "!"
    if rng.random() < 0.1 and kind not in ("hello", "ok"):
        text = rng.choice(("hey, ", "please ", "so, ", "hi, ", "ok, ", "and ")) + text
    if kind == "thanks" and rng.random() < 0.2:
        text += rng.choice((" bye", " for your help", " very much", " that's all"))
    text = text[0].upper() + text[1:] if rng.random() < 0.75 else text
    if kind == "can":
        names = ", ".join(one.definition["name"] for one in offered)
        return text, f"I can use these tools: {names}." if names else "I have no tools here."
    return text, _ANSWERS[kind]


def _result(rng: random.Random) -> tuple[str, str]:
    """What a tool says, and what is said about it."""
    kind = rng.random()
    if kind < 0.4:
        fields: dict[str, Any] = {}
        for _ in range(rng.randint(1, 4)):
            key = rng.choice((rng.choice(ATTRIBUTES), word(rng, "noun", invented=0.2)))
            fields[key] = rng.choice(
                (
                    rng.randint(0, 1000),
                    round(rng.uniform(0, 100), 1),
                    words(rng, 1, 2),
                    name(rng, "city"),
                    rng.choice(_STATES),
                    code(rng),
                    rng.random() < 0.5,
                )
            )
        text = json.dumps(fields) if rng.random() < 0.8 else json.dumps(fields, separators=(",", ":"))
        said = ", ".join(
            f"{key.replace('_', ' ')} {value if isinstance(value, str) else json.dumps(value)}"
            for key, value in fields.items()
        )
        return text, f"The result: {said}."
    if kind < 0.55:
        value = rng.choice((str(rng.randint(0, 10**6)), str(round(rng.uniform(0, 5000), 2)), str(money(rng)[1])))
        return value, f"The result is {value}."
    if kind < 0.65:
        return rng.choice(
            (rng.choice(_STATES), '{"ok": true}', "null", "Success", "Done.", '{"success": true}', "OK")
        ), "Done."
    if kind < 0.72:
        text = rng.choice(
            (
                f"{words(rng, 1, 2)} not found",
                "permission denied",
                "timeout",
                f"no such {noun_of(rng)}",
                f"invalid {rng.choice(ATTRIBUTES)}",
            )
        )
        return f"Error: {text}", f"That did not work: {text}."
    text = _sentence(rng)
    return text, text


def _sentence(rng: random.Random) -> str:
    """A sentence that a tool answers with."""
    place, thing, number = name(rng, "city"), noun_of(rng), rng.randint(0, 200)
    return rng.choice(
        (
            f"{number} degrees and {rng.choice(_STATES)} in {place}.", f"It is {rng.choice(_STATES)}, {number} degrees.", f"The {thing} is {word(rng, 'adjective')}.", f"{name(rng, 'first')} has {number} {thing}s.",
            f"Sent to {name(rng, 'first')}.", f"{title(rng)} by {name(rng, 'first')} {name(rng, 'last')}.", f"The {rng.choice(ATTRIBUTES).replace('_', ' ')} of {code(rng)} is {number}.", f"Found {number} {thing}s in {place}.",
            f"{words(rng, 2, 8).capitalize()}.", f"{thing.capitalize()} {code(rng)} is {rng.choice(_STATES)} since {rng.randint(2020, 2027)}-0{rng.randint(1, 9)}-{rng.randint(10, 28)}.", f"It's {rng.choice(_STATES)} in {place}",
            f"{number} km, about {rng.randint(1, 60)} minutes.", f"{thing} {code(rng)}: {rng.choice(_STATES)}", f"{place}: {number}", f"{word(rng, 'thing')} cost {number}.50 dollars",
        )
    )  # fmt: skip


def _call(offered: Offer, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": offered.definition["name"], "arguments": arguments}}


def _kit(rng: random.Random, most: int, table: tuple[Concept, ...]) -> list[Offer]:
    """One to `most` tools that are told apart."""
    chosen: list[Concept] = []
    for _ in range(rng.randint(1, most)):
        for _ in range(10):
            kind = rng.random()
            if kind < 0.35:
                other = rng.choice(table)
            elif kind < 0.6:  # what is for nearly the same
                domain = chosen[0].domain if chosen else ""
                other = rng.choice([one for one in table if one.domain == domain] or table)
            elif kind < 0.8 and chosen:
                other = neighbour(rng.choice(chosen), rng)
            else:
                other = composed(rng)
            if not any(resemble(other, one) for one in chosen):
                chosen.append(other)
                break
    offers = []
    for concept in chosen:
        offered = offer(concept, rng)
        if offered.definition["name"] not in [one.definition["name"] for one in offers]:
            offers.append(offered)
    rng.shuffle(offers)
    return offers


def _amiss(offered: list[Offer], rng: random.Random, table: tuple[Concept, ...]) -> str | None:
    """A request that none of the offered tools is for."""
    for _ in range(10):
        kind, beside = rng.random(), rng.choice(offered).concept if offered else composed(rng)
        if kind < 0.25:
            other = neighbour(beside, rng)
        elif kind < 0.5:
            other = rng.choice([one for one in table if one.domain == beside.domain] or table)
        else:
            other = rng.choice(table) if kind < 0.85 else composed(rng)
        if any(resemble(other, one.concept) for one in offered) or other.group.startswith("extract"):
            continue
        if (
            any(
                one.concept.group
                in ("shell", "python", "calc", "search", "wiki", "note", "todo", "reminder", "docs", "image")
                for one in offered
            )
            and rng.random() < 0.8
        ):
            continue
        return polished(ask(offer(other, rng), rng), rng)
    return None


def conversation(rng: random.Random, most_turns: int, table: tuple[Concept, ...] | None = None) -> Conversation:
    """A conversation of up to `most_turns` questions."""
    table = table or concepts()
    offered = _kit(rng, 4 if rng.random() < 0.9 else 7, table) if rng.random() > 0.02 else []
    messages: list[Message] = []
    if rng.random() < 0.35:
        text = rng.choice(_SYSTEMS).strip()
        messages.append({"role": "system", "content": text if rng.random() < 0.8 else f"{text} {_sentence(rng)}"})
    for _ in range(rng.randint(1, most_turns)):
        kind = rng.random()
        if not offered or kind < 0.15:
            question, answer = small_talk(offered, rng)
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer, "learn": True}]
        elif kind < 0.25:
            amiss = _amiss(offered, rng, table)
            if amiss is not None:
                messages += [
                    {"role": "user", "content": amiss},
                    {"role": "assistant", "content": NO_TOOL, "learn": True},
                ]
        elif kind < 0.38 and len(offered) > 1:
            _several(offered, messages, rng)
        else:
            _one(offered, messages, rng)
    if not any(message["role"] == "user" for message in messages):
        _one(offered, messages, rng) if offered else messages.extend(
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": _ANSWERS["hello"], "learn": True}]
        )
    definitions = [{"type": "function", "function": one.definition} for one in offered]
    return Conversation(messages, definitions)


def _one(offered: list[Offer], messages: list[Message], rng: random.Random) -> None:
    """A question, its call, and mostly what follows from it."""
    chosen = rng.choice(offered)
    asked = ask(chosen, rng)
    messages.append({"role": "user", "content": polished(asked, rng)})
    messages.append({"role": "assistant", "content": "", "tool_calls": [_call(chosen, asked.arguments)], "learn": True})
    if rng.random() < 0.75:
        text, said = _result(rng)
        messages += [{"role": "tool", "content": text}, {"role": "assistant", "content": said, "learn": True}]
    else:
        messages.append({"role": "tool", "content": "ok"})
        messages.append({"role": "assistant", "content": "Done.", "learn": True})


def _several(offered: list[Offer], messages: list[Message], rng: random.Random) -> None:
    """Two or three things asked for at once: called at once, or one after the other if the client wants that."""
    some = rng.sample(offered, 2) if len(offered) == 2 or rng.random() < 0.85 else rng.sample(offered, 3)
    if rng.random() < 0.2:
        some = [some[0]] * len(some)  # the same tool, for two things
    asked = [ask(one, rng) for one in some]
    first = polished(asked[0], rng).rstrip(".?!")
    joints = (
        " and ",
        ", and ",
        ". Then ",
        ". Also ",
        ", then ",
        "? And ",
        " and also ",
        ". And ",
        "? Also, ",
        "; ",
        " and then ",
        "\n",
    )
    text = first
    for one in asked[1:]:
        text += rng.choice(joints) + one.text.rstrip(".?!")
    text += rng.choice(("?", ".", "", ""))
    calls = [_call(one, each.arguments) for one, each in zip(some, asked, strict=True)]
    results = [_result(rng) for _ in some]
    messages.append({"role": "user", "content": text})
    if rng.random() < 0.65:
        messages.append({"role": "assistant", "content": "", "tool_calls": calls, "learn": True})
        messages += [{"role": "tool", "content": each[0]} for each in results]
    else:
        for at, (call, each) in enumerate(zip(calls, results, strict=True)):
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [call], "learn": "call" if at else False}
            )
            messages.append({"role": "tool", "content": each[0]})
    messages.append({"role": "assistant", "content": "\n".join(each[1] for each in results), "learn": True})


__all__ = ["WORDS", "Conversation", "conversation", "small_talk"]
