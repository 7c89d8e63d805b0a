"""Pairs of requests of which the second misses, with why and where, made without looking at who explains it.

Each case is a list of steps: bodies as clients send them, when, and what befalls the cache. The last step is judged.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

SAID = (
    "remove any common leading whitespace from every line in text wrap the single paragraph so return a list of output "
    "lines without final newlines optional keyword arguments correspond to instance attributes of the wrapper class"
)
WORDS = SAID.split()
Body = dict[str, Any]
Mutation = Callable[[str, random.Random], str]
TEXTS = 6
"""Messages of a conversation, the first of which instructs."""


class Step(Struct, kw_only=True):
    """One request. `at`: seconds. `model`: which of the served models. `evicted`: all KV is lost before it. `slow`: it
    answers after all others. `purge`: the project's leases are ended after it. `limit`: tokens that leases may have."""

    body: Body
    at: float = 0.0
    model: str = "plain"
    control: str = ""
    replica: str = "a"
    evicted: bool = False
    slow: bool = False
    purge: bool = False
    limit: int = 0


class Case(Struct, kw_only=True):
    """`expected`: causes with their JSON paths, each of which is to be named; several paths where several are right,
    none where any is."""

    name: str
    dialect: str
    steps: list[Step]
    expected: list[tuple[str, tuple[str, ...]]]
    tools: bool = False
    """Needs a template that knows tools."""


def sentence(dice: random.Random, words: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(words))


def chat(dice: random.Random, words: int = 60) -> Body:
    """A conversation in OpenAI's words, without markers."""
    roles = ["system", *(["user", "assistant"] * TEXTS)][:TEXTS]
    return {"model": "m", "messages": [{"role": role, "content": sentence(dice, words)} for role in roles]}


def messages(dice: random.Random, words: int = 60, *, tools: bool = False, ttl: str = "5m") -> Body:
    """The same in Anthropic's, cached automatically."""
    body = chat(dice, words)
    system, *rest = body["messages"]
    body = {"model": "m", "max_tokens": 5, "system": system["content"], "messages": rest}
    body["cache_control"] = {"type": "ephemeral", "ttl": ttl}
    if tools:
        body["tools"] = [
            {
                "name": f"look{number}",
                "description": sentence(dice, 12),
                "input_schema": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "days": {"type": "number"}},
                    "required": ["city"],
                },
            }
            for number in range(3)
        ]
    return body


# ---------------------------------------------------------------- one text changed


def change_word(text: str, dice: random.Random) -> str:
    words = text.split(" ")
    words[dice.randrange(len(words))] = "Zebra"
    return " ".join(words)


def first_word(text: str, _dice: random.Random) -> str:
    return "Zebra" + text[text.index(" ") :]


def last_word(text: str, _dice: random.Random) -> str:
    return text[: text.rindex(" ")] + " Zebra"


def space(text: str, dice: random.Random) -> str:
    spaces = [at for at, character in enumerate(text) if character == " "]
    at = dice.choice(spaces)
    return text[:at] + " " + text[at:]


def line_end(text: str, dice: random.Random) -> str:
    spaces = [at for at, character in enumerate(text) if character == " "]
    at = dice.choice(spaces)
    return text[:at] + "\n" + text[at + 1 :]


def timestamp(text: str, dice: random.Random) -> str:
    return f"It is 2026-11-{dice.randrange(10, 30)}T{dice.randrange(10, 24)}:00:00Z. {text}"


def timestamp_at_the_end(text: str, dice: random.Random) -> str:
    return f"{text} It is 2026-11-{dice.randrange(10, 30)}T{dice.randrange(10, 24)}:00:00Z."


def shorter(text: str, dice: random.Random) -> str:
    words = text.split(" ")
    return " ".join(words[: dice.randrange(len(words) // 2, len(words) - 1)])


def longer(text: str, dice: random.Random) -> str:
    return f"{text} {sentence(dice, 5)}"


def case_changed(text: str, dice: random.Random) -> str:
    words = text.split(" ")
    at = dice.randrange(len(words))
    words[at] = words[at].upper() + "X"
    return " ".join(words)


def typographic(text: str, dice: random.Random) -> str:
    words = text.split(" ")
    words[dice.randrange(len(words))] = "“Grüße”"
    return " ".join(words)


TEXT_MUTATIONS: tuple[Mutation, ...] = (
    change_word,
    first_word,
    last_word,
    space,
    line_end,
    timestamp,
    timestamp_at_the_end,
    shorter,
    longer,
    case_changed,
    typographic,
)


def edited(
    body: Body, index: int, mutation: Callable[[str, random.Random], str], dice: random.Random
) -> tuple[Body, str]:
    """The body with one text changed, and its path. `index` 0 is the instructions."""
    body = copy.deepcopy(body)
    if "system" in body:
        if index == 0:
            body["system"] = mutation(body["system"], dice)
            return body, "$.system"
        index -= 1
    body["messages"][index]["content"] = mutation(body["messages"][index]["content"], dice)
    return body, f"$.messages[{index}].content"


def bodies(dice: random.Random, dialect: str, *, tools: bool = False) -> Body:
    return chat(dice) if dialect == "openai" else messages(dice, tools=tools)


def _both(before: Body, after: Body, **last: Any) -> list[Step]:
    return [Step(body=before), Step(body=after, at=10.0, **last)]


def text_cases() -> Iterator[Case]:
    for dialect in ("openai", "anthropic"):
        for mutation in TEXT_MUTATIONS:
            for index in range(TEXTS):
                dice = random.Random(f"{dialect} {mutation.__name__} {index}")
                before = bodies(dice, dialect)
                after, path = edited(before, index, mutation, dice)
                name = f"{dialect}: {mutation.__name__} in text {index}"
                yield Case(name=name, dialect=dialect, steps=_both(before, after), expected=[("diverged", (path,))])


def structure_cases() -> Iterator[Case]:
    for dialect in ("openai", "anthropic"):
        first = 1 if dialect == "openai" else 0
        for k in range(first, 4):
            dice = random.Random(f"{dialect} structure {k}")
            before = bodies(dice, dialect)
            at, content = f"$.messages[{k}]", f"$.messages[{k}].content"
            role = before["messages"][k]["role"]
            other = "assistant" if role == "user" else "user"

            def made(
                name: str, after: Body, *paths: str, before: Body = before, k: int = k, dialect: str = dialect
            ) -> Case:
                steps = _both(before, after)
                return Case(name=f"{dialect}: {name} {k}", dialect=dialect, steps=steps, expected=[("diverged", paths)])

            after = copy.deepcopy(before)
            pair = [{"role": role, "content": sentence(dice, 8)}, {"role": other, "content": sentence(dice, 8)}]
            after["messages"][k:k] = pair
            yield made("two messages inserted before", after, content)
            after = copy.deepcopy(before)
            del after["messages"][k : k + 2]
            yield made("two messages removed from", after, content, at)
            if dialect == "openai":
                after = copy.deepcopy(before)
                after["messages"][k]["role"] = other
                yield made("role changed of", after, at, content)
                after = copy.deepcopy(before)
                after["messages"].insert(k, {"role": other, "content": sentence(dice, 8)})
                yield made("message inserted before", after, at, content)
                after = copy.deepcopy(before)
                del after["messages"][k]
                yield made("message removed:", after, at, content)
            after = copy.deepcopy(before)
            texts = after["messages"]
            if k + 2 < len(texts):
                texts[k]["content"], texts[k + 2]["content"] = texts[k + 2]["content"], texts[k]["content"]
                yield made("messages swapped:", after, content)
            parted = copy.deepcopy(before)
            parts = [{"type": "text", "text": sentence(dice, 20)} for _ in range(3)]
            parted["messages"][k]["content"] = parts
            after = copy.deepcopy(parted)
            after["messages"][k]["content"][1]["text"] = first_word(parts[1]["text"], dice)
            yield made("second part changed of", after, f"{content}[1].text", before=parted)


# ---------------------------------------------------------------- tools


def tool_cases() -> Iterator[Case]:
    for seed in range(4):
        dice = random.Random(f"tools {seed}")
        before = messages(dice, tools=True)
        number = seed % 3

        def made(name: str, after: Body, *paths: str, before: Body = before, seed: int = seed) -> Case:
            steps = [Step(body=before, model="tools"), Step(body=after, at=10.0, model="tools")]
            expected = [("diverged", paths)]
            return Case(name=f"{name}, {seed}", dialect="anthropic", steps=steps, expected=expected, tools=True)

        after = copy.deepcopy(before)
        after["tools"][0], after["tools"][2] = after["tools"][2], after["tools"][0]
        yield made("tools in another order", after, "$.tools[0]")
        after = copy.deepcopy(before)
        schema = after["tools"][number]["input_schema"]
        schema["properties"] = dict(reversed(schema["properties"].items()))
        yield made("properties in another order", after, f"$.tools[{number}]")
        after = copy.deepcopy(before)
        after["tools"][number]["input_schema"] = dict(reversed(after["tools"][number]["input_schema"].items()))
        yield made("keys in another order", after, f"$.tools[{number}]")
        after = copy.deepcopy(before)
        after["tools"][number]["description"] = change_word(after["tools"][number]["description"], dice)
        yield made("a word of a description", after, f"$.tools[{number}]")
        after = copy.deepcopy(before)
        after["tools"].append({**after["tools"][0], "name": "another"})
        yield made("a tool more", after, "$.tools[3]")
        after = copy.deepcopy(before)
        del after["tools"][2]
        yield made("a tool less", after, "$.tools[2]")
        after, path = edited(before, 0, timestamp, dice)
        yield made("a timestamp beside tools", after, path)
        after, path = edited(before, 2, change_word, dice)
        yield made("a word beside tools", after, path)
    for seed in range(3):
        dice = random.Random(f"thinking {seed}")
        before = messages(dice, tools=True)
        asked = before["messages"][1]["content"]
        thought = {"type": "thinking", "thinking": sentence(dice, 20), "signature": "s"}
        before["messages"][1]["content"] = [thought, {"type": "text", "text": asked}]
        after = copy.deepcopy(before)
        del after["messages"][1]["content"][0]
        paths = (
            "$.messages[1]",
            *(f"$.messages[1].content[{part}]{name}" for part in (0, 1) for name in ("", ".text", ".thinking")),
        )
        steps = [Step(body=before, model="tools"), Step(body=after, at=10.0, model="tools")]
        expected = [("diverged", paths)]
        yield Case(name=f"thinking dropped, {seed}", dialect="anthropic", steps=steps, expected=expected, tools=True)


# ---------------------------------------------------------------- what the prompt does not show


def other_cases() -> Iterator[Case]:
    life = {"5m": 300, "1h": 3600}
    for seed in range(4):
        dice = random.Random(f"other {seed}")
        for dialect in ("openai", "anthropic"):
            before = bodies(dice, dialect)
            tail = {"role": "user", "content": sentence(dice, 6)}
            after = {**before, "messages": [*before["messages"], {"role": "assistant", "content": "ok"}, tail]}

            def made(
                name: str, cause: str, steps: list[Step], *paths: str, dialect: str = dialect, seed: int = seed
            ) -> Case:
                return Case(name=f"{dialect}: {name}, {seed}", dialect=dialect, steps=steps, expected=[(cause, paths)])

            yield made("nothing earlier", "cold", [Step(body=before)])
            yield made("another model", "model_changed", _both(before, after, model="other"))
            yield made("another template", "template_changed", _both(before, after, model="template"))
            yield made("no-cache", "no_read", _both(before, after, control="no-cache"))
            bare = {name: value for name, value in before.items() if name != "cache_control"}
            stored_not = [Step(body=bare, control="no-store"), Step(body=after, at=5.0, evicted=True)]
            yield made("no-store before", "no_store", stored_not)
            short = {**before, "messages": [{"role": "user", "content": "What is it?"}]} | (
                {"system": "Be brief."} if dialect == "anthropic" else {}
            )
            yield made("too short", "below_minimum", _both(short, short))
            if dialect == "openai":
                keyed = {**after, "prompt_cache_key": "another"}
                yield made("another key", "partition_changed", _both(before, keyed))
                yield made("evicted", "evicted", _both(before, after, evicted=True))
                yield made("another replica", "other_replica", _both(before, after, replica="b"))
                at_once = [Step(body=before, slow=True), Step(body=after, at=0.1)]
                yield made("at the same time", "not_yet_visible", at_once)
                repeated = [Step(body=before), Step(body=before, at=5.0)]
                yield made("the same again", "block_rest", repeated)
                continue
            for ttl, seconds in life.items():
                marked = {**before, "cache_control": {"type": "ephemeral", "ttl": ttl}}
                late = {**after, "cache_control": {"type": "ephemeral", "ttl": ttl}}
                steps = [Step(body=marked), Step(body=late, at=seconds + 20.0 + seed)]
                yield made(f"{ttl} over", "lease_expired", steps)
                refreshed = [
                    *steps[:1],
                    Step(body=late, at=seconds - 20.0),
                    Step(body=late, at=2.0 * seconds + 9 + seed),
                ]
                yield made(f"{ttl} over after a read", "lease_expired", refreshed)
            unmarked = {name: value for name, value in after.items() if name != "cache_control"}
            yield made("no marker", "unmarked", _both(before, unmarked))
            yield made(
                "never a marker", "unmarked", _both({n: v for n, v in before.items() if n != "cache_control"}, after)
            )
            many = [{"role": ("user", "assistant")[n % 2], "content": sentence(dice, 3)} for n in range(30)]
            grown = {**before, "messages": [*before["messages"], *many[1:], many[0]][: TEXTS - 1 + 29]}
            yield made("twenty blocks later", "lookback_exceeded", _both(before, grown))
            yield made("purged", "purged", [Step(body=before, purge=True), Step(body=after, at=10.0)])
            limited = [Step(body=before, limit=40), Step(body=after, at=10.0, limit=40)]
            yield made("at the limit", "lease_limit", limited)
            yield made("max-age", "no_read", _both(before, after, control="max-age=3"))


def named_cases() -> list[Case]:
    """All cases with a name of their own."""
    return [*text_cases(), *structure_cases(), *tool_cases(), *other_cases()]


def double_cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Two things at once: two texts changed, of which the first decides; or a text changed after a lease has ended."""
    for number in range(count):
        dice = random.Random(f"double {seed} {number}")
        dialect = dice.choice(("openai", "anthropic"))
        before = bodies(dice, dialect)
        one, two = sorted(dice.sample(range(TEXTS), 2))
        mutations = dice.sample(TEXT_MUTATIONS, 2)
        after, path = edited(before, one, mutations[0], dice)
        after, _ = edited(after, two, mutations[1], dice)
        steps, expected = _both(before, after), [("diverged", (path,))]
        if number % 3 == 0:
            first = {"type": "ephemeral", "ttl": "1h"}
            system = [{"type": "text", "text": sentence(dice, 300), "cache_control": first}]
            before = {**messages(dice), "system": system, "cache_control": first}
            index = dice.randrange(1, TEXTS - 1)
            after = copy.deepcopy(before)
            text = after["messages"][index]["content"]
            after["messages"][index]["content"] = mutations[0](text, dice)
            dialect, path = "anthropic", f"$.messages[{index}].content"
            steps = [Step(body=before), Step(body=after, at=3700.0)]
            expected = [("lease_expired", ()), ("diverged", (path,))]
        yield Case(name=f"double {number}", dialect=dialect, steps=steps, expected=expected)
