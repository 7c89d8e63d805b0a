"""Tools as clients define them: from a table, and put together from verbs, nouns and attributes."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .values import TYPES, made_up, word
from .vocabulary import ATTRIBUTES, DETAILS, ENDS, EXPLAINED, IDENTIFIERS, LINKS, OBJECTS, SYNONYMS, VERBS


@dataclass(frozen=True)
class Parameter:
    key: str
    source: str
    required: bool
    choices: tuple[str, ...] = ()
    explained: str = ""


@dataclass(frozen=True)
class Concept:
    """What a tool is for. `group`: concepts of one group, or of groups that resemble each other, are not told apart."""

    group: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    asks: tuple[str, ...]
    domain: str = ""

    @property
    def tags(self) -> frozenset[str]:
        """What the group is called; tools that share a tag are not told apart."""
        return frozenset(self.group.split(","))


@dataclass(frozen=True)
class Offer:
    """A concept as one client defines it: the definition, and its names of the concept's parameters."""

    concept: Concept
    definition: dict[str, Any]
    keys: dict[str, str]
    as_text: frozenset[str]
    """Parameters whose numbers are to be written as strings."""


ALIKE = [
    set(line.split())
    for line in (
        "weather forecast air", "search wiki docs fetch summary jokeapi news book findfile", "calc add", "calc subtract", "calc multiply",
        "calc divide", "calc power", "calc root", "calc percentage", "calc tip", "percentage tip", "python calc", "python shell",
        "time timecity today", "timecity timezone", "reminder todo alarm note calendar meeting", "timer alarm", "products price inventory cart",
        "hotel hotel2", "table restaurant", "trains flights directions distance", "coin dice random", "parcel order return", "mail sms chatmsg",
        "currency currency", "contact contact3 hr2", "user user hr2", "appointment meeting", "appointment doctor", "music movie", "define synonym wiki medicine",
        "population countryinfo wiki", "user5 user3", "ping dns metrics logs", "lights lights", "extract1 extract2 extract3 extract4", "shopping cart todo",
        "sports standings news", "recipe food calories", "lead contact2", "image movie", "sun tide moon", "lock gate", "shell readfile files", "shell branch branch2 commit",
        "weather weatherhistory hourly wind humidity frost radar sunshine forecast climate seatemp snow", "sunshine sun", "flightbook flights", "airbnb hostel hotel hotel2 camping", "route directions distance traffic toll", "parking payparking charging",
        "split tip percentage calc", "mortgage loan", "taxbracket tax salary", "inflation savings retire", "transactions balance expense", "transferiban pay standing requestmoney cryptosend", "invoice invoicestatus quote2 dunning", "reimburse receipt expense",
        "mail maildraft mailsched mailforward mailreply", "chatdm chatmsg sms newchannel mail", "meeting reschedule recurring cancelevent rsvp invite goal", "docsearch docs findfile search files", "callphone call", "contact contactadd contactget contact2", "watchlist stock marketcap portfolio earnings",
        "sellstock stock2", "discount percentage margin coupon roi", "holidays calendar", "itinerary sights guide packing", "delay platform trains seatres", "focus timer", "sticky note minutes comment todo", "action todo assign reminder", "free calendar", "weekdayof today countdown adddays", "delay flightstat gateinfo", "createdoc writefile",
        "roaming visa plug vaccination advisory", "supplies cart order food inventory", "exchangecash currency", "hotelcancel cancelevent order2", "room desk projector", "lostbag return", "split divide", "videocall callphone", "river tide", "aurora star eclipse moon", "footprint carbon electricity",
        "orderfood food pizza coffeeorder", "tableres table restaurant", "cancelres hotelcancel cancelevent", "recipesearch recipe mealplan cooktime", "nutrition calories", "grocery shopping cart supplies pantry", "compareprice price products pricealert wishlist cart placeorder secondhand", "storehours museum findstore", "giftcard gift", "reviewsget review ratefilm recommend",
        "restock supplies inventory", "customerlookup contact user lead contactget", "leave hr", "employeelookup hr2 contactget", "jobsearch job jobpost", "interview appointment meeting", "enroll course", "grade exam", "quizme quiz flashcards flashcard", "uni scholarship", "paper search docs wiki docsearch lawsearch newssearch news", "score2 sports fixtures", "table2 standings sports", "poll survey",
        "passport visa", "address2 changeaddr", "propsearch airbnb hostel", "fine finecontest invoice", "geocode revgeo directions distance", "nearby findstore pharmacy parking charging restaurant hospital", "commute route directions distance", "molecule element", "spacepos star", "species wiki sighting", "stats average maximum", "summarize summary keywords", "transcript translate2 ocr", "resetpw password",
        "playartist music playgenre playlist podcast audiobook queue speakerplay", "playlistadd playlist queue", "concerts tickets sportticket", "filmsearch movie recommend whereto cinema games", "cinemaseats cinema tickets tableres", "tvguide tv record", "booksby book bookinfo loanbook", "genimage image photoedit", "tts announce translate", "deviceon lights washer coffee tv dishwasher", "deviceoff lights2 devicestate",
        "acmode heat poolheat", "thermoget sensor devicestate", "dim lights lightcolor blinds curtains", "laundry washer", "mower", "plantwater sprinkler", "cctv camera doorbell", "druginteraction medicine dosage", "symptomlog symptom triage mood", "doctorvisit doctor appointment dentist", "meallog calories", "reps workout", "heartrate blood glucose", "pillremind reminder alarm", "calorieneed bmi", "createissue ticket",
        "gitlog commit", "deploy rollback tagrelease", "ci tests", "logs2 logs", "cpu metrics diskusage", "findrow sql countrows describetable", "portscan ping", "dnsrec dns whois", "install packageinfo vulns", "stacktrace search", "httpget fetch", "snippet python", "habit workout reps", "backup restoredb", "process container restart", "grant role", "matrix interpolate calc", "geometry paint", "complaint review feedback", "pothole maintenance handyman ticket",
        "carvalue compareprice price", "unitprice price", "plantcare recipe", "clockin timesheet", "fuellog expense", "gas tirepressure", "label carservice", "viewing appointment meeting", "therapist doctor lawyer tutor", "newmember volunteer friend", "rewrite translate spell", "cocktail recipe recipesearch", "scene lights", "weightlog heartrate",
        "upgrade role", "refund return order2", "subscribe order2", "movie cinema tickets", "tag share", "call contact", "archive delfile",
    )
]  # fmt: skip

_PARAMETER = re.compile(r"(\w+):(\w+)(?:\(([^)]*)\))?(!?)(?:=(\S+))?$")


@cache
def concepts() -> tuple[Concept, ...]:
    """The table's concepts."""
    found = []
    for domain, line in _lines():
        group, names, descriptions, parameters, asks = (part.strip() for part in line.split("|", 4))
        found.append(
            Concept(
                group,
                tuple(names.split()),
                tuple(text.strip() for text in descriptions.split(";;")),
                tuple(_parameter(text) for text in parameters.split()),
                tuple(text.strip() for text in asks.split(";;")),
                domain,
            )
        )
    return tuple(found)


@cache
def idle_questions() -> dict[str, list[str]]:
    """For each domain, what people say about it that no tool is for."""
    lines = [(domain, line.partition("|")[2]) for domain, line in _lines("?")]
    return {domain: [text.strip() for text in said.split(";;")] for domain, said in lines}


def _lines(beginning: str = "") -> Iterator[tuple[str, str]]:
    """(domain, line) of every concept, or of what begins otherwise."""
    for file in sorted((Path(__file__).parent / "concepts").glob("*.txt")):
        for line in file.read_text().splitlines():
            first = line[:1]
            if first == beginning or (not beginning and first not in "#?"):
                yield file.stem, line


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.match(text)
    assert match, text
    key, source, choices, required, explained = match.groups()
    chosen = tuple(choices.split("/")) if choices else ()
    return Parameter(key, source, bool(required), chosen, (explained or "").replace("_", " "))


def resemble(one: Concept, other: Concept) -> bool:
    """Whether a question for one could be one for the other."""
    if one.tags & other.tags:
        return True
    return any(one.tags & group and other.tags & group for group in ALIKE)


def noun_of(rng: random.Random) -> str:
    """A thing to do something with: of the list, of another list, or of nobody."""
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(OBJECTS)
    return word(rng, "noun") if kind < 0.85 else made_up(rng)


def composed(rng: random.Random, verb: str | None = None, noun: str | None = None) -> Concept:
    """A concept of a verb and a noun, or of an attribute and a noun."""
    noun = noun or noun_of(rng)
    if verb is None and rng.random() < 0.3:
        return _attribute(rng, noun)
    verb = verb or rng.choice(list(VERBS))
    said = [text.replace("_", " ") for text in VERBS[verb].split()]
    parameters = [_composed_parameter(rng, noun)]
    if rng.random() < 0.5:
        source = rng.choice(DETAILS)
        key = rng.choice(
            (
                source if source not in ("int", "enum", "phrase", "word", "words") else rng.choice(ATTRIBUTES),
                rng.choice(ATTRIBUTES),
            )
        )
        if key != parameters[0].key:
            choices = (
                tuple({word(rng, "adjective", "noun", "label", invented=0.1) for _ in range(rng.randint(2, 4))})
                if source == "enum"
                else ()
            )
            parameters.append(Parameter(key, source, rng.random() < 0.6, choices))
    first = parameters[0].key
    asks = [f"{a} {the}{noun} {{{first}}}" for a in said for the in ("the ", "", "my ")]
    if verb in ("get", "check", "list"):
        asks += [f"what about {noun} {{{first}}}?", f"can I see the {noun} {{{first}}}?"]
    if len(parameters) == 2:
        second = parameters[1]
        links = LINKS[second.source].split()
        tails = [
            f" {rng.choice(links)} {{{second.key}}}",
            f" with {second.key.replace('_', ' ')} {{{second.key}}}",
            f", {second.key.replace('_', ' ')} {{{second.key}}}",
        ]
        asks = [
            ask.rstrip("?") + (tail if second.required else f"[{tail}]") + ("?" if ask.endswith("?") else "")
            for ask in asks
            for tail in tails
        ]
    said_of = rng.choice(
        (
            f"{verb.capitalize()} a {noun}",
            f"{verb.capitalize()}s a {noun}",
            f"{rng.choice(said).capitalize()} a {noun} of the {rng.choice(OBJECTS)}",
            f"{verb.capitalize()} one {noun} by its {first}",
        )
    )
    order = (f"{verb}_{noun}",) * 4 + (f"{noun}_{verb}",)
    return Concept(f"{verb}-{noun}", (rng.choice(order),), (said_of,), tuple(parameters), tuple(asks))  # fmt: skip


def _composed_parameter(rng: random.Random, noun: str) -> Parameter:
    source = rng.choice(IDENTIFIERS)
    key = {
        "code": rng.choice((f"{noun}_id", "id", f"{noun}_number", "number", "code", noun)), "id": rng.choice((f"{noun}_id", "id", "number")),
        "file": rng.choice(("file", "path", noun)), "host": rng.choice(("host", "name", noun)), "city": rng.choice(("city", "place", noun)),
    }.get(source) or rng.choice((noun, "name", f"{noun}_name", "title", "label"))  # fmt: skip
    return Parameter(key, source, True)


def _attribute(rng: random.Random, noun: str) -> Concept:
    attribute = rng.choice(ATTRIBUTES)
    said = attribute.replace("_", " ")
    parameter = _composed_parameter(rng, noun)
    at = f"{{{parameter.key}}}"
    asks = (
        f"what is the {said} of {noun} {at}?", f"what is the {said} of the {noun} {at}?", f"{said} of {at}", f"tell me the {said} of the {noun} {at}",
        f"which {said} has {noun} {at}?", f"get the {said} for {at}", f"what {said} does the {noun} {at} have?", f"I need the {said} of {at}",
        f"do you know the {said} of the {noun} {at}?", f"show the {noun} {said} of {at}",
    )  # fmt: skip
    names = (
        f"get_{noun}_{attribute}",
        f"{noun}_{attribute}",
        f"get_{attribute}",
        f"{attribute}_of_{noun}",
        f"fetch_{attribute}",
    )
    described = rng.choice(
        (f"The {said} of a {noun}", f"Get the {said} of a {noun}", f"Returns the {said} of one {noun}")
    )
    return Concept(f"{attribute}-{noun}", (rng.choice(names),), (described,), (parameter,), asks)


def neighbour(concept: Concept, rng: random.Random) -> Concept:
    """A composed concept that shares a word with this one, but is another."""
    if "-" not in concept.group:
        return composed(rng)
    first, noun = concept.group.split("-", 1)
    if rng.random() < 0.5 and first in VERBS:
        return composed(rng, verb=first)
    other = rng.choice(
        [verb for verb in VERBS if verb != first and not set(VERBS[verb].split()) & set(VERBS.get(first, "").split())]
    )
    return composed(rng, verb=other, noun=noun)


def restyle(name: str, style: str) -> str:
    """A name in the style of a client's language."""
    parts = re.split(r"[_\s]+", name)
    if style == "camel":
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    if style == "pascal":
        return "".join(part.capitalize() for part in parts)
    return ("-" if style == "kebab" else "_").join(parts)


def offer(concept: Concept, rng: random.Random) -> Offer:
    """One client's definition of a concept."""
    style = rng.choices(("snake", "camel", "kebab", "pascal"), (75, 18, 4, 3))[0]
    name = rng.choice(concept.names)
    if name[0].islower():
        name = restyle(name, style)
    if rng.random() < 0.15:
        name = restyle(
            rng.choice(
                (
                    f"{name}_{noun_of(rng)}",
                    f"{made_up(rng)}_{name}",
                    f"{name}_{made_up(rng)}",
                    f"{rng.choice(('get', 'do', 'run', 'my', 'find'))}_{name}",
                )
            ),
            "snake",
        )
    if rng.random() < 0.03:
        name = f"{rng.choice(('mcp', 'tools', 'api', word(rng, 'service')))}__{name}"
    keys: dict[str, str] = {}
    as_text: set[str] = set()
    properties: dict[str, Any] = {}
    required = []
    wordy = rng.random() ** 0.5
    shown = list(concept.parameters)
    if rng.random() < 0.15:
        rng.shuffle(shown)
    for parameter in shown:
        key = parameter.key
        if key in ENDS and rng.random() < 0.7:
            key = rng.choice(ENDS[key].split())
            key = key if rng.random() < 0.7 else f"{key}_{rng.choice((parameter.source, 'name', 'code', 'value'))}"
        elif rng.random() < 0.4 and parameter.source in SYNONYMS:
            key = rng.choice(SYNONYMS[parameter.source].split())
        if rng.random() < 0.22:  # a name that nobody has seen is to be copied, too
            strange = rng.choice((noun_of(rng), made_up(rng), word(rng, "adjective")))
            key = rng.choice(
                (f"{strange}_{key}", f"{key}_{strange}", strange if len(shown) == 1 else f"{strange}_{key}")
            )
        if key in keys.values():
            key = parameter.key if parameter.key not in keys.values() else f"{parameter.key}_{len(keys)}"
        key = restyle(key, "camel" if style in ("camel", "pascal") else "snake")
        keys[parameter.key] = key
        properties[key] = _schema(parameter, key, wordy, rng)
        if parameter.source in ("number", "id", "int") and rng.random() < 0.04:
            properties[key]["type"] = "string"
            as_text.add(parameter.key)
        if parameter.required and rng.random() < 0.95:
            required.append(key)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    definition: dict[str, Any] = {"name": name}
    if rng.random() < 0.93:
        described = rng.choice(concept.descriptions)
        definition["description"] = described + rng.choice(
            (".", ".", ".", "", ". Use it when needed.", f". Needs {len(properties)} arguments.")
        )
    return Offer(concept, definition | {"parameters": schema}, keys, frozenset(as_text))  # fmt: skip


def _schema(parameter: Parameter, key: str, wordy: float, rng: random.Random) -> dict[str, Any]:
    kind = {"enum": "string", "bool": "boolean"}.get(parameter.source) or TYPES.get(parameter.source, "string")
    schema: dict[str, Any] = {"type": kind}
    if kind == "integer" and rng.random() < 0.15:
        schema["type"] = "number"
    if kind == "array":
        schema["items"] = {"type": "integer" if parameter.source == "numbers" else "string"}
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
        if rng.random() < 0.12:
            schema["enum"] = [choice.upper() for choice in parameter.choices]
    if rng.random() < wordy:
        plain = re.sub(r"([A-Z])", r" \1", key.replace("_", " ")).lower()
        own = EXPLAINED.get(parameter.source, ())
        schema["description"] = rng.choice(
            (
                f"The {plain}",
                f"{plain.capitalize()}",
                f"{plain.capitalize()} of the {rng.choice(OBJECTS)}",
                f"The {plain} to use",
                *own,
                *own,
                *((parameter.explained,) * 12 if parameter.explained else ()),
            )
        )
        if parameter.choices and rng.random() < 0.15:
            schema["description"] += f": {', '.join(schema['enum'])}"
        if not parameter.required and rng.random() < 0.12:
            schema["description"] += rng.choice((" (optional)", ", optional", ". Optional."))
    return schema  # fmt: skip
