"""Texts for prompts: sentences of plain words, the same for the same seed."""

from __future__ import annotations

from random import Random

_SUBJECTS = (
    *("The archive", "Each chapter", "The editor", "A reader", "The customer", "This paragraph", "The request"),
    *("Our catalogue", "The review", "A function", "The test", "An earlier answer", "The contract", "Every table"),
)
_VERBS = (
    *("names", "returns", "describes", "replaces", "explains", "checks", "quotes", "lists", "orders", "compares"),
    *("follows", "summarises", "mentions", "depends on", "refers to", "corrects"),
)
_OBJECTS = (
    *("the source of a quotation", "the second edition", "a list of names", "the year of publication"),
    *("the return value", "an open invoice", "the shipping address", "an unread message", "the last paragraph"),
    *("a missing argument", "the house style", "the refund policy", "an index entry", "the table of contents"),
)
_ENDS = (
    *("in one sentence", "without an opinion", "before anything else", "if it is known", "as the guide asks"),
    *("for the whole series", "by its number", "in plain words", "unless the customer objects", "on request"),
)
QUESTIONS = (
    *("Which chapter mentions this first?", "Summarise this for the back cover.", "Is this consistent with the guide?"),
    *("Suggest a shorter title.", "What did the customer ask for?", "Which order is meant?", "Draft a polite answer."),
    *("Does this change break a caller?", "Name the tests that are missing.", "What would you rename here?"),
    *("Translate the last paragraph into plain English.", "List the names in the order of appearance."),
)


def prose(random: Random, words: int) -> str:
    """About so many words."""
    made: list[str] = []
    count = 0
    while count < words:
        sentence = " ".join((random.choice(_SUBJECTS), random.choice(_VERBS), random.choice(_OBJECTS)))
        sentence = f"{sentence} {random.choice(_ENDS)}."
        made.append(sentence)
        count += sentence.count(" ") + 1
    return " ".join(made)


def question(random: Random) -> str:
    """A question of a user, with a sentence of its own."""
    return f"{random.choice(QUESTIONS)} {prose(random, 8)}"
