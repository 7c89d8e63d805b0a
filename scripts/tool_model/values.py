"""Values of parameters as a question has them and as a call has them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS: dict[str, list[str]] = {}
for _line in (Path(__file__).parent / "words.txt").read_text().splitlines():
    _name, _, _words = _line.partition(": ")
    WORDS[_name] = [word.replace("_", " ") for word in _words.split()]


def kinds_of_text(file: str) -> dict[str, list[str]]:
    """The texts of each kind in one of the folder's files, which has a kind a line."""
    lines = (line.partition(": ") for line in (Path(__file__).parent / file).read_text().splitlines())
    return {kind: [text.strip() for text in texts.split(";;")] for kind, _, texts in lines}


TEXTS = kinds_of_text("texts.txt")
"""Texts as people write them. Marks in braces are filled."""

_ONSETS = [
    "b",
    "bl",
    "br",
    "c",
    "ch",
    "cl",
    "d",
    "dr",
    "f",
    "fl",
    "fr",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "pr",
    "qu",
    "r",
    "s",
    "sh",
    "sk",
    "sl",
    "sn",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "y",
    "z",
]
_NUCLEI = ["a", "e", "i", "o", "u", "ai", "ea", "ee", "ie", "io", "oa", "oo", "ou"]
_CODAS = ["", "", "", "n", "r", "s", "l", "t", "m", "k", "x", "nd", "rt", "st", "ck", "ng", "th"]
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Value = tuple[str, Any]
"""The words of the question, and the value of the call."""


SPARE: list[str] = []
"""Words that are one token each, once there is a vocabulary: every token is to be copied now and then."""


def made_up(rng: random.Random) -> str:
    """A word that no list has, so that a model has to copy."""
    if SPARE and rng.random() < 0.5:
        return rng.choice(SPARE) + (rng.choice(SPARE) if rng.random() < 0.2 else "")
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_NUCLEI) + rng.choice(_CODAS) for _ in range(rng.choice((1, 2, 2, 2, 3)))
    )


def word(rng: random.Random, *names: str, invented: float = 0.25) -> str:
    """One of the lists' words, or with the chance `invented` one of nobody's."""
    if rng.random() < invented:
        return made_up(rng)
    return rng.choice(WORDS[rng.choice(names)])


def name(rng: random.Random, *names: str, invented: float = 0.3) -> str:
    """A word that begins with a capital."""
    chosen = word(rng, *names, invented=invented)
    return chosen[0].upper() + chosen[1:]


def words(rng: random.Random, least: int, most: int) -> str:
    """Some words in a row."""
    return " ".join(
        word(rng, rng.choice(("noun", "adjective", "topic", "verb", "thing")), invented=0.15)
        for _ in range(rng.randint(least, most))
    )


def title(rng: random.Random) -> str:
    """Capitalised words, as songs, films, meetings and places have them."""
    if rng.random() < 0.35:
        return written(rng, rng.choice(("event", "film", "song")))
    chosen = [name(rng, "noun", "adjective", "topic", "first", "city", invented=0.2) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.2:
        chosen.insert(0, rng.choice(("The", "My", "La", "A", "Das")))
    if rng.random() < 0.15 and len(chosen) > 1:
        chosen.insert(-1, rng.choice(("of", "and", "in", "for", "&", "the")))
    text = " ".join(chosen)
    return text + rng.choice(("'s", "")) if rng.random() < 0.1 else text


_MARK = re.compile(r"\{(\w+)\}")
_FILLS: dict[str, Callable[[random.Random], str]] = {
    "noun": lambda rng: word(rng, "noun"), "topic": lambda rng: word(rng, "topic", "topic2"), "adjective": lambda rng: word(rng, "adjective"),
    "city": lambda rng: name(rng, "city"), "country": lambda rng: name(rng, "country"), "first": lambda rng: name(rng, "first"),
    "First": lambda rng: name(rng, "first"), "Last": lambda rng: name(rng, "last"), "Title": title, "language": lambda rng: name(rng, "language"),
    "food": lambda rng: word(rng, "food"), "age": lambda rng: str(rng.randint(5, 99)), "year": lambda rng: str(rng.randint(1200, 2026)), "UPPER": lambda rng: made_up(rng).upper()[:4],
    "tool": lambda rng: rng.choice(("assistant", "bot", "there", "my friend")), "n": lambda rng: str(rng.randint(2, 60)), "weekday": lambda rng: rng.choice(TEXTS["weekday"]),
    "thing": lambda rng: word(rng, "thing", "thing2"), "company": lambda rng: name(rng, "company", "last"), "hour": lambda rng: rng.choice((f"{rng.randint(1, 12)} pm", f"{rng.randint(6, 11)}", f"{rng.randint(6, 23)}:{rng.randint(0, 5)}0")),
}  # fmt: skip


def filled(text: str, rng: random.Random) -> str:
    """A text with its marks filled."""
    return _MARK.sub(lambda mark: _FILLS[mark.group(1)](rng), text)


def written(rng: random.Random, kind: str) -> str:
    """One of the texts of a kind."""
    return filled(rng.choice(TEXTS[kind]), rng)


def _several(rng: random.Random, kind: str) -> Value:
    chosen = list(
        dict.fromkeys(written(rng, kind) if rng.random() < 0.9 else made_up(rng) for _ in range(rng.randint(1, 3)))
    )
    return row(chosen), chosen


def phrase(rng: random.Random) -> Value:
    """A longer text, often in quotes."""
    kind = rng.random()
    text = (
        words(rng, 1, 6)
        if kind < 0.3
        else _sentence(rng)
        if kind < 0.5
        else written(rng, rng.choice(("msg", "msg", "event", "task")))
    )
    if rng.random() < 0.3:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.08:
        text += rng.choice((" " + str(rng.randint(1, 99)), "!", " v2", ", ok"))
    shown = rng.choice((f'"{text}"', f'"{text}"', f"'{text}'", f"“{text}”", text, text)) if "'" not in text else text
    return shown, text


def _sentence(rng: random.Random) -> str:
    noun, adjective = word(rng, "noun"), word(rng, "adjective")
    return rng.choice(
        (
            f"the {noun} is {adjective}", f"please {word(rng, 'verb')} the {noun}", f"{noun} does not work",
            f"meet me at the {noun}", f"we need a {adjective} {noun}", f"{name(rng, 'first')} is late",
            f"I like the {noun}", f"see you in {name(rng, 'city')}", f"the {noun} on floor {rng.randint(1, 9)} {rng.choice(('broke', 'is gone', 'hangs', 'leaks'))}",
            f"how is the {noun}", f"thank you for the {noun}", f"where is the {noun}", f"good {noun}",
        )
    )  # fmt: skip


def number(rng: random.Random) -> Value:
    """A number as people type it."""
    kind = rng.random()
    if kind < 0.55:
        value: Any = rng.randint(0, 10 ** rng.randint(1, 5))
    elif kind < 0.62:
        value = -rng.randint(1, 500)
    else:
        value = round(rng.uniform(0, 10 ** rng.randint(1, 4)), rng.randint(1, 3))
    return str(value), value


def money(rng: random.Random) -> Value:
    """An amount, sometimes with a sign or a unit."""
    value: Any = rng.randint(1, 10 ** rng.randint(1, 4))
    if rng.random() < 0.4:
        value = round(value + rng.random(), 2)
    shown = f"{value:.2f}" if isinstance(value, float) and rng.random() < 0.5 else str(value)
    grouped = f"{value:,}"
    return rng.choice(
        (
            shown,
            shown,
            shown,
            f"${shown}",
            f"${grouped}",
            f"{rng.choice('€£')}{grouped}",
            f"{shown} {rng.choice(WORDS['currencyname'])}",
            f"{grouped} {rng.choice(WORDS['currencyname'])}",
        )
    ), value


def code(rng: random.Random) -> str:
    """An identifier: letters, digits and signs."""
    letters = "".join(rng.choice(_LETTERS) for _ in range(rng.randint(1, 3)))
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 8)))
    mixed = "".join(rng.choice(_LETTERS + "0123456789") for _ in range(rng.randint(6, 16)))
    low = rng.choice(("cus", "ord", "acct", "pay", "id", "tx", "u", "sub", made_up(rng)))
    small = "".join(rng.choice("abcdefghijklmnop0123456789") for _ in range(rng.randint(2, 6)))
    forms = (
        digits,
        letters + digits,
        f"{letters}-{digits}",
        f"{low}_{small}",
        mixed,
        f"#{digits}",
        f"{letters}{digits}-{letters}",
    )
    return rng.choice(forms)  # fmt: skip


def host(rng: random.Random) -> str:
    """A machine, a service or a domain."""
    first = word(rng, "service")
    digits = str(rng.randint(1, 20))
    forms = (first, f"{first}-{digits}", f"{first}{digits}", f"{first}-0{digits[0]}", f"{first}.{word(rng, 'service', 'noun')}",
             f"{first}.{word(rng, 'noun')}.{rng.choice(WORDS['tld'])}", ".".join(str(rng.randint(0, 255)) for _ in range(4)),
             f"{word(rng, 'noun')}.{rng.choice(WORDS['tld'])}", f"{word(rng, 'adjective')}-{first}")  # fmt: skip
    return rng.choice(forms)


def domain(rng: random.Random) -> str:
    """A domain's name."""
    inner = rng.choice(("", "", "-" + word(rng, "noun")))
    return f"{word(rng, 'noun', 'company', 'topic', invented=0.4).lower()}{inner}.{rng.choice(WORDS['tld'])}"


def email(rng: random.Random) -> str:
    """An address of mail."""
    first, last = word(rng, "first", invented=0.3).lower(), word(rng, "last", invented=0.3).lower()
    local = rng.choice(
        (first, f"{first}.{last}", f"{first[0]}.{last}", f"{first}{rng.randint(1, 99)}", last, f"{first}_{last}")
    )
    return f"{local}@{domain(rng)}"  # fmt: skip


def url(rng: random.Random) -> str:
    """An address of the web."""
    tail = rng.choice(
        (
            "",
            "",
            "/",
            f"/{word(rng, 'noun')}",
            f"/{word(rng, 'topic')}/{rng.randint(1, 999)}",
            f"/{word(rng, 'noun')}.html",
        )
    )
    return f"{rng.choice(('https://', 'https://', 'http://', 'https://www.', 'www.'))}{domain(rng)}{tail}"  # fmt: skip


def path(rng: random.Random) -> str:
    """A folder."""
    parts = [word(rng, "dirs", "dirs", "noun", "first").lower() for _ in range(rng.randint(1, 3))]
    return rng.choice(("/", "/", "/", "./", "", "~/")) + "/".join(parts) + rng.choice(("", "", "", "/"))


def file(rng: random.Random) -> str:
    """A file."""
    base = word(rng, "noun", "dirs", "label", "topic").lower()
    tail = rng.choice((f".{rng.choice(WORDS['ext'])}",) * 5 + ("",))
    stem = rng.choice((base, base, f"{base}_{word(rng, 'noun')}", f"{base}-{rng.randint(1, 2030)}"))
    folder = rng.choice(("", "", path(rng).rstrip("/") + "/"))
    return f"{folder}{stem}{tail}" if folder or tail else f"{stem}.txt"


def branch(rng: random.Random) -> str:
    """A branch of a repository."""
    base = word(rng, "noun", "verb", "service")
    forms = ("main", "dev", base, f"feature/{base}", f"fix-{base}", f"{base}-{rng.randint(1, 99)}", f"bugfix/{base}-{word(rng, 'noun')}", f"release/{rng.randint(1, 9)}.{rng.randint(0, 9)}")  # fmt: skip
    return rng.choice(forms)


def sql(rng: random.Random) -> str:
    """A query."""
    table, column = word(rng, "noun") + "s", word(rng, "noun", "label")
    forms = (f"SELECT * FROM {table}", f"SELECT {column} FROM {table} WHERE id = {rng.randint(1, 99)}",
             f"SELECT count(*) FROM {table}", f"select {column} from {table} limit {rng.randint(1, 50)}",
             f"SELECT max({column}) FROM {table}", f"SELECT {column}, count(*) FROM {table} GROUP BY {column}",
             f"SELECT sum({column}) FROM {table} WHERE {word(rng, 'noun')} > {rng.randint(1, 99)}")  # fmt: skip
    return rng.choice(forms)


def command(rng: random.Random) -> str:
    """A command line."""
    forms = (f"ls -la {path(rng)}", f"cat {file(rng)}", "git status", "df -h", f"python {word(rng, 'noun')}.py", f"make {word(rng, 'verb')}",
             f"echo {word(rng, 'noun')}", "docker ps", f"npm run {word(rng, 'verb')}", f"tail -n {rng.randint(1, 99)} {file(rng)}")  # fmt: skip
    return rng.choice(forms)


def expression(rng: random.Random) -> str:
    """Arithmetic."""
    parts = [number(rng)[0]]
    for _ in range(rng.randint(1, 3)):
        parts += [rng.choice("+-*/"), number(rng)[0].lstrip("-")]
    return " ".join(parts)


def people(rng: random.Random, *names: str) -> Value:
    """Several names in a row."""
    chosen = [name(rng, *(names or ("first",))) for _ in range(rng.randint(1, 3))]
    return row(chosen), chosen


def row(items: list[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _numbers(rng: random.Random) -> Value:
    chosen = [rng.randint(1, 500) for _ in range(rng.randint(2, 5))]
    return row([str(value) for value in chosen]), chosen


def _titles(rng: random.Random) -> Value:
    chosen = [title(rng) for _ in range(rng.randint(1, 3))]
    return row(chosen), chosen


def _labels(rng: random.Random) -> Value:
    chosen = [word(rng, "label", "noun", "adjective") for _ in range(rng.randint(1, 3))]
    return row(chosen), chosen


def _time(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, 5, 10, 15, 20, 25, 30, 40, 45, 50, 55, rng.randint(0, 59))):02d}"


def _date(rng: random.Random) -> str:
    return f"{rng.randint(2024, 2029)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def in_words(date: str, rng: random.Random) -> str:
    """A date as people write it, with its year."""
    year, month, day = date.split("-")
    called, number = TEXTS["month"][int(month) - 1], int(day)
    nth = f"{number}{'th' if 10 < number < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
    return rng.choice(
        (
            f"{called} {number}, {year}",
            f"{number} {called} {year}",
            f"{called} {nth}, {year}",
            f"the {nth} of {called} {year}",
            f"{called} {nth} {year}",
        )
    )


def on_a_clock(time: str, rng: random.Random) -> str:
    """A time of day with am and pm."""
    hour, minute = (int(part) for part in time.split(":"))
    if hour == 12 and not minute:
        return "noon"
    half, small = "am" if hour < 12 else "pm", (hour - 1) % 12 + 1
    return f"{small}{f':{minute:02d}' if minute else ''}{rng.choice(('', ' '))}{half}"


def _minutes(rng: random.Random) -> Value:
    value = rng.choice((5, 10, 15, 20, 25, 30, 40, 45, 60, 90, 120, rng.randint(2, 180)))
    forms = [f"{value} minutes", f"{value} minutes", f"{value} min", f"{value} minutes"]
    forms += {
        30: ["half an hour"] * 2,
        60: ["an hour", "one hour", "1 hour"],
        120: ["two hours", "2 hours"],
        90: ["one and a half hours"],
        15: ["a quarter of an hour"],
        45: ["three quarters of an hour"],
        180: ["3 hours", "three hours"],
    }.get(value, [])
    return rng.choice(forms), value


def _phone(rng: random.Random) -> str:
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 4)))
    return rng.choice(
        (f"555-{digits}", f"+49 30 {digits}", f"+1 555 {digits}", f"0{digits}{digits}", f"+44{digits}{digits}")
    )


def _int(rng: random.Random) -> Value:
    value = rng.choice((rng.randint(1, 12), rng.randint(1, 100), rng.randint(10, 500)))
    return str(value), value


def _year(rng: random.Random) -> Value:
    value = rng.randint(1930, 2030)
    return str(value), value


def _id(rng: random.Random) -> Value:
    value = rng.randint(1, 10 ** rng.randint(2, 6))
    return str(value), value


def _percent(rng: random.Random) -> Value:
    value = rng.choice((rng.randint(1, 100), 5, 10, 15, 18, 20, 25, round(rng.uniform(0.5, 30), 1)))
    return str(value), value


Source = Callable[[random.Random], "Value | str"]
SOURCES: dict[str, Source] = {
    "city": lambda rng: name(rng, "city", "city", "city2"),
    "country": lambda rng: name(rng, "country", invented=0.15),
    "person": lambda rng: rng.choice((name(rng, "first"), f"{name(rng, 'first')} {name(rng, 'last')}", name(rng, "last"))),
    "fullname": lambda rng: f"{name(rng, 'first')} {name(rng, 'last')}" if rng.random() < 0.7 else name(rng, "first"),
    "people": people,
    "titles": _titles,
    "numbers": _numbers,
    "words": _labels,
    "company": lambda rng: rng.choice((name(rng, "company", "last"), f"{name(rng, 'company', 'last')} {rng.choice(WORDS['suffix'])}")),
    "email": email,
    "phone": _phone,
    "username": lambda rng: rng.choice((made_up(rng), f"{word(rng, 'first').lower()}{rng.randint(1, 999)}", f"{made_up(rng)[0]}{word(rng, 'last').lower()}", f"{word(rng, 'first').lower()}_{word(rng, 'last').lower()}")),
    "url": url,
    "domain": domain,
    "host": host,
    "path": path,
    "file": file,
    "branch": branch,
    "version": lambda rng: f"{rng.choice(('', 'v'))}{rng.randint(0, 12)}.{rng.randint(0, 30)}{rng.choice(('', '.1', '.2', '.0'))}",
    "sql": sql,
    "command": command,
    "code_text": lambda rng: rng.choice((f"print({expression(rng)})", f"len('{made_up(rng)}')", f"sum([{rng.randint(1, 9)}, {rng.randint(1, 9)}])", f"{made_up(rng)} = {rng.randint(1, 99)}")),
    "expression": expression,
    "number": number,
    "int": _int,
    "id": _id,
    "percent": _percent,
    "money": money,
    "year": _year,
    "date": _date,
    "time": _time,
    "mins": _minutes,
    "lat": lambda rng: (str(value := round(rng.uniform(-89, 89), rng.randint(1, 4))), value),
    "lon": lambda rng: (str(value := round(rng.uniform(-179, 179), rng.randint(1, 4))), value),
    "four": lambda rng: "".join(rng.choice("0123456789") for _ in range(4)),
    "flightno": lambda rng: f"{rng.choice(_LETTERS)}{rng.choice(_LETTERS)}{rng.choice(('', ' '))}{rng.randint(10, 9999)}",
    "trainno": lambda rng: f"{rng.choice(('ICE', 'IC', 'TGV', 'RE', 'train', 'EC', 'S'))} {rng.randint(1, 9999)}",
    "pnr": lambda rng: "".join(rng.choice(_LETTERS + "0123456789") for _ in range(6)),
    "seat": lambda rng: f"{rng.randint(1, 60)}{rng.choice('ABCDEFGHJK')}",
    "cell": lambda rng: f"{rng.choice('ABCDEFGHJK')}{rng.randint(1, 99)}",
    "plate": lambda rng: rng.choice((f"{rng.choice(_LETTERS)}-{made_up(rng)[:2].upper()} {rng.randint(1, 9999)}", code(rng))),
    "airport": lambda rng: rng.choice((*TEXTS["iata"], "".join(rng.choice(_LETTERS) for _ in range(3)))),
    "iban": lambda rng: rng.choice(("DE", "GB", "FR", "NL", "CH")) + "".join(rng.choice("0123456789") for _ in range(rng.randint(12, 20))),
    "vat": lambda rng: rng.choice(("DE", "GB", "ATU", "FR")) + "".join(rng.choice("0123456789") for _ in range(9)),
    "hex": lambda rng: rng.choice(("0x", "", "bc1q")) + "".join(rng.choice("0123456789abcdef") for _ in range(rng.randint(6, 14))),
    "ip": lambda rng: ".".join(str(rng.randint(0, 255)) for _ in range(4)),
    "zip": lambda rng: rng.choice(("".join(rng.choice("0123456789") for _ in range(5)), f"{rng.choice(_LETTERS)}{rng.choice(_LETTERS)}{rng.randint(1, 9)} {rng.randint(1, 9)}{rng.choice(_LETTERS)}{rng.choice(_LETTERS)}")),
    "lastname": lambda rng: name(rng, "last"),
    "emails": lambda rng: (row(chosen := [email(rng) for _ in range(rng.randint(1, 3))]), chosen),
    "products": lambda rng: _several(rng, "product"),
    "dishes": lambda rng: _several(rng, "dish"),
    "foods": lambda rng: (row(chosen := list(dict.fromkeys(word(rng, "food") for _ in range(rng.randint(1, 4))))), chosen),
    "msg": lambda rng: phrase(rng) if rng.random() < 0.4 else written(rng, "msg"),
    "rating": lambda rng: (str(value := rng.randint(1, 5)), value),
    "code": code,
    "upper": lambda rng: rng.choice((made_up(rng).upper() + str(rng.randint(1, 99)), word(rng, "noun").upper())),
    "slug": lambda rng: rng.choice((f"#{word(rng, 'noun')}", word(rng, "noun", "topic"), f"{word(rng, 'noun')}-{word(rng, 'noun')}")),
    "word": lambda rng: word(rng, "noun", "topic", "food"),
    "phrase": phrase,
    "title": title,
    "topic": lambda rng: word(rng, "topic", "topic2", "thing", invented=0.15) if rng.random() < 0.5 else words(rng, 1, 3) if rng.random() < 0.5 else written(rng, "query"),
    "task": lambda rng: rng.choice((rng.choice(WORDS["task"]), f"{word(rng, 'verb')} the {words(rng, 1, 2)}", written(rng, "task"), written(rng, "task"))),
    "thing": lambda rng: rng.choice((word(rng, "thing", "thing2", invented=0.15), word(rng, "thing", "thing2", invented=0.15), f"{word(rng, 'adjective')} {word(rng, 'thing')}", written(rng, "product"))),
    "address": lambda rng: f"{rng.randint(1, 200)} {rng.choice(WORDS['street'])} {rng.choice(('Street', 'Road', 'Avenue', 'Lane'))}",
    "place": lambda rng: rng.choice((word(rng, "place", invented=0.1), name(rng, "city"), title(rng))),
    "roadname": lambda rng: rng.choice((f"A{rng.randint(1, 99)}", f"Highway {rng.randint(1, 99)}", f"{rng.choice(WORDS['street'])} Street")),
    "room": lambda rng: word(rng, "room", "room", "room2", invented=0.1),
    "door": lambda rng: word(rng, "door", invented=0.1),
    "area": lambda rng: word(rng, "area", invented=0.15),
}  # fmt: skip
for _list in ("currency", "language", "coin", "food", "cuisine", "sport", "carrier", "sign", "medical", "profession", "unit", "ticker", "rareword"):  # fmt: skip
    SOURCES.setdefault(_list, lambda rng, source=_list: _of_list(rng, source))


def _of_list(rng: random.Random, source: str) -> str:
    if source == "ticker" and rng.random() < 0.4:
        return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(2, 5)))
    if source in ("carrier", "sign", "currency"):
        return rng.choice(WORDS[source])
    return (
        word(rng, source, invented=0.15) if source not in ("language", "cuisine") else name(rng, source, invented=0.1)
    )


TYPES = {
    "number": "number", "money": "number", "percent": "number", "int": "integer", "id": "integer", "year": "integer", "mins": "integer", "lat": "number", "lon": "number",
    "rating": "integer", "emails": "array", "products": "array", "dishes": "array", "foods": "array", "people": "array", "titles": "array", "words": "array", "numbers": "array",
}  # fmt: skip


def draw(source: str, rng: random.Random) -> Value:
    """A value of a source."""
    if source in SOURCES:
        drawn = SOURCES[source](rng)
    else:
        drawn = (
            (written(rng, source) if source in TEXTS else word(rng, source)) if rng.random() < 0.88 else made_up(rng)
        )
    return (drawn, drawn) if isinstance(drawn, str) else drawn
