r"""Translates patterns of JSON schemas (ECMA-262 regular expressions) into those of the grammar library.

The library has the syntax of Rust's `regex`: its `.` and `\s` take other characters, a class may hold classes and set
operations, and nothing looks around. A look-ahead behind the `^` that begins a pattern becomes a pattern of its own,
which the text must match as well; a negative one its complement, where that is simple to write. A word boundary becomes
the characters beside it, where these are known to be of words or not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

Ranges: TypeAlias = list[tuple[int, int]]
"""Code points from the first to the last one of each pair, in order and apart."""

_LAST = 0x10FFFF
_DIGITS: Ranges = [(0x30, 0x39)]
_WORDS: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_BREAKS: Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_SPACES: Ranges = [
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
]  # fmt: skip
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B, "f": 0x0C, "0": 0x00}
_QUANTIFIER = re.compile(r"(?:[*+?]|\{(\d+)(,(\d*))?\})\??")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})(?:\\u([dD][c-fC-F][0-9A-Fa-f]{2}))?|u\{([0-9A-Fa-f]+)\}")
_FLAGS = re.compile(r"(?:[^\\[]|\\.|\[(?:[^\]\\]|\\.)*\])*?\(\?[a-z-]+[:)]", re.DOTALL)
"""A group with flags, which is neither behind a backslash nor in a class."""
_PROPERTY = re.compile(r"\{[^{}]*\}")
_DEEPEST = 60
"""How deep groups may be nested: they are read by recursion."""


class UnknownPattern(ValueError):
    """A pattern that cannot be translated; the message says what in it."""


@dataclass(frozen=True)
class _Characters:
    """One character of these. `text`: as the library writes it, where the ranges are not known."""

    ranges: Ranges | None
    text: str = ""


@dataclass(frozen=True)
class _Edge:
    """`^`, `$`, or a word boundary `b`."""

    kind: str


@dataclass
class _Group:
    """`ahead`: a look-ahead, positive or negative; None: an ordinary group."""

    options: list[list[_Term]] = field(default_factory=list)
    ahead: bool | None = None


@dataclass(frozen=True)
class _Term:
    atom: _Characters | _Edge | _Group
    quantifier: str = ""

    @property
    def optional(self) -> bool:
        return self.quantifier[:1] in ("*", "?") or self.quantifier.startswith(("{0,", "{0}"))


def translate_pattern(pattern: str) -> list[str]:
    """The library's patterns that a text must match, each of them, to match this one. Raises UnknownPattern."""
    if _FLAGS.match(pattern):
        return [pattern]  # with flags, which ECMA-262 does not have at this place: it is in the library's own syntax
    options = _Reader(pattern).read()
    if len(options) == 1 and options[0] and options[0][0].atom == _Edge("^"):
        terms, conditions = options[0][1:], list[str]()
        while terms and isinstance(group := terms[0].atom, _Group) and group.ahead is not None:
            conditions += _condition(group) if group.ahead else map(_complement, group.options)
            terms = terms[1:]
        return [_write([[_Term(_Edge("^")), *terms]], outermost=True), *conditions]
    return [_write(options, outermost=True)]


class _Reader:
    """Reads a pattern of ECMA-262."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def read(self) -> list[list[_Term]]:
        options = self._options()
        if self._at < len(self._text):
            raise UnknownPattern("a `)` without its `(`")
        return options

    def _options(self) -> list[list[_Term]]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnknownPattern(f"groups nested more than {_DEEPEST} deep")
        options: list[list[_Term]] = [[]]
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._takes("|"):
                options.append([])
                continue
            atom = self._atom()
            options[-1].append(_Term(atom, self._quantifier(atom)))
        self._depth -= 1
        return options

    def _takes(self, text: str) -> bool:
        taken = self._text.startswith(text, self._at)
        self._at += len(text) if taken else 0
        return taken

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise UnknownPattern("an end where more should follow")
        self._at += 1
        return self._text[self._at - 1]

    def _quantifier(self, atom: _Characters | _Edge | _Group) -> str:
        match = _QUANTIFIER.match(self._text, self._at)
        if match is None:
            return ""
        if isinstance(atom, _Edge) or (isinstance(atom, _Group) and atom.ahead is not None):
            raise UnknownPattern(f"`{match[0]}` after what takes no character")
        self._at = match.end()
        if match[3] and int(match[3]) < int(match[1]):
            raise UnknownPattern(f"`{match[0]}`")
        return match[0].removesuffix("?") if len(match[0]) > 1 else match[0]

    def _atom(self) -> _Characters | _Edge | _Group:
        character = self._next()
        atom: _Characters | _Edge | _Group = _single(ord(character))
        match character:
            case "^" | "$":
                atom = _Edge(character)
            case ".":
                atom = _Characters(_others(_BREAKS))
            case "[":
                atom = self._class()
            case "(":
                atom = self._group()
            case "\\":
                atom = _Edge("b") if self._takes("b") else self._escape()
            case "*" | "+" | "?":
                raise UnknownPattern(f"`{character}` without what it repeats")
        return atom

    def _group(self) -> _Group:
        ahead: bool | None = None
        if self._takes("?="):
            ahead = True
        elif self._takes("?!"):
            ahead = False
        elif self._takes("?<=") or self._takes("?<!"):
            raise UnknownPattern("a look-behind")
        elif self._takes("?<") or self._takes("?P<"):
            self._at = self._text.find(">", self._at) + 1 or len(self._text)
        elif self._text.startswith("?", self._at) and not self._takes("?:"):
            raise UnknownPattern(f"`({self._text[self._at : self._at + 2]}`")
        group = _Group(self._options(), ahead)
        if not self._takes(")"):
            raise UnknownPattern("a `(` without its `)`")
        return group

    def _escape(self) -> _Characters:
        """What follows a backslash."""
        hexadecimal = _HEX.match(self._text, self._at)
        if hexadecimal is not None:
            return self._code_point(hexadecimal)
        character = self._next()
        kind: _Characters
        if character.lower() in _CLASSES:
            ranges = _CLASSES[character.lower()]
            kind = _Characters(ranges if character.islower() else _others(ranges))
        elif character in _CONTROLS:
            kind = _single(_CONTROLS[character])
        elif character in "pP" and (name := _PROPERTY.match(self._text, self._at)):
            self._at = name.end()
            kind = _Characters(None, f"\\{character}{name[0]}")
        elif character == "c" and self._text[self._at : self._at + 1].isalpha():
            kind = _single(ord(self._next()) % 32)
        elif character in "Az":  # which Rust and Python have, for the beginning and the end
            kind = _Characters(None, f"\\{character}")
        elif character.isalnum():
            raise UnknownPattern(f"`\\{character}`")
        else:
            kind = _single(ord(character))
        return kind

    def _code_point(self, escape: re.Match[str]) -> _Characters:
        """The character of `\\xHH`, `\\uHHHH`, a pair of these, or `\\u{…}`."""
        self._at = escape.end()
        two, four, low, braced = escape.groups()
        code = int(two or four or braced, 16)
        if low and 0xD800 <= code < 0xDC00:
            code = 0x10000 + ((code - 0xD800) << 10) + int(low, 16) - 0xDC00
        elif low:
            self._at -= len(r"\u") + len(low)
        if code > _LAST:
            raise UnknownPattern(f"`\\{escape[0]}`")
        return _single(code)

    def _class(self) -> _Characters:
        negative = self._takes("^")
        ranges, texts = Ranges(), list[str]()
        while not self._takes("]"):
            low = self._member()
            high = low
            if low.ranges is not None and self._is_range():
                self._at += 1
                high = self._member()
            if low.ranges is None or high.ranges is None:
                texts += [part.text for part in (low, high) if part.ranges is None][:1]
            elif high is low:
                ranges += low.ranges
            elif low.ranges[0][0] != low.ranges[-1][1] or high.ranges[0][0] != high.ranges[-1][1]:
                ranges += [*low.ranges, (0x2D, 0x2D), *high.ranges]  # `\d-x`: the hyphen is one of the characters
            elif low.ranges[0][0] > high.ranges[0][0]:
                raise UnknownPattern("a range whose end comes before its beginning")
            else:
                ranges.append((low.ranges[0][0], high.ranges[0][0]))
        if texts:
            inside = "".join(texts) + (_class_text(_sorted(ranges)) if ranges else "")
            return _Characters(None, f"[{'^' if negative else ''}{inside}]")
        return _Characters(_others(_sorted(ranges)) if negative else _sorted(ranges))

    def _is_range(self) -> bool:
        return self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at)

    def _member(self) -> _Characters:
        character = self._next()
        if character != "\\":
            return _single(ord(character))
        return _single(8) if self._takes("b") else self._escape()


def _single(code: int) -> _Characters:
    return _Characters([(code, code)])


def _condition(group: _Group) -> list[str]:
    """The pattern of a text that begins with what the look-ahead looks for."""
    return [_write([[_Term(_Edge("^")), _Term(_Group(group.options))]], outermost=True)]


def _complement(terms: list[_Term]) -> str:
    """The pattern of a text that does not begin with these terms. Raises UnknownPattern."""
    whole = bool(terms) and terms[-1] == _Term(_Edge("$"))
    terms = terms[:-1] if whole else terms
    skips = terms[:1] == [_Term(_Characters(_others(_BREAKS)), "*")]
    sets = [term.atom.ranges for term in terms[skips:] if isinstance(term.atom, _Characters) and not term.quantifier]
    if not sets or len(sets) < len(terms) - skips or None in sets:
        raise UnknownPattern("a negative look-ahead that is more than a row of characters")
    known = [ranges for ranges in sets if ranges is not None]
    if not skips:
        rest = r"[\s\S]+" if whole else None
        for ranges in reversed(known):
            more = "" if rest is None else f"|{_class_text(ranges)}{rest}"
            rest = rf"(?:{_class_text(_others(ranges))}[\s\S]*{more})?"
        return f"^{rest}$"
    # Line breaks that are not looked for: `.` ends before each, and so does the search.
    harmless = _others(_sorted(known[0] + _others(_BREAKS)))
    if whole or any(ranges != known[0] for ranges in known) or (len(known) > 1 and harmless != _BREAKS):
        raise UnknownPattern("a negative look-ahead for different characters anywhere")
    row = f"(?:{_class_text(known[0])}){{0,{len(known) - 1}}}"
    other = _class_text(_others(_sorted(known[0] + _BREAKS)))
    return rf"^(?:{row}{other})*{row}(?:{_class_text(harmless)}[\s\S]*)?$"


def _write(options: list[list[_Term]], *, outermost: bool = False) -> str:
    return "|".join(
        "".join(
            _boundary(terms, at, outermost) if term.atom == _Edge("b") else _atom_text(term.atom) + term.quantifier
            for at, term in enumerate(terms)
        )
        for terms in options
    )


def _atom_text(atom: _Characters | _Edge | _Group) -> str:
    if isinstance(atom, _Edge):
        return atom.kind
    if isinstance(atom, _Characters):
        return atom.text if atom.ranges is None else _class_text(atom.ranges)
    if atom.ahead is not None:
        raise UnknownPattern("a look-ahead that is not right behind the `^` at the beginning")
    return f"(?:{_write(atom.options)})"


def _boundary(terms: list[_Term], at: int, outermost: bool) -> str:
    """What a word boundary is between its neighbours. Raises UnknownPattern."""
    before = _side(terms[at - 1], -1) if at else None
    after = _side(terms[at + 1], 0) if at + 1 < len(terms) else None
    if at and at + 1 < len(terms) and before is not None and after is not None:
        return "" if before != after else "[^\\s\\S]"
    word, other = _class_text(_WORDS), _class_text(_others(_WORDS))
    if outermost and not at and after is not None:  # anything may stand before, or nothing
        return rf"^(?:[\s\S]*{other})?" if after else word
    if outermost and at + 1 == len(terms) and before is not None:
        return rf"(?:{other}[\s\S]*)?$" if before else word
    raise UnknownPattern("`\\b` beside what may be of a word or not")


def _side(term: _Term, side: int) -> bool | None:
    """Whether the character at this side of a term is always one of words, or never; None: not known."""
    if isinstance(term.atom, _Edge):
        return None if term.atom.kind == "b" else False
    if term.optional:
        return None
    if isinstance(term.atom, _Group):
        sides = {_side(option[side], side) if option else None for option in term.atom.options}
        return sides.pop() if len(sides) == 1 else None
    ranges = term.atom.ranges
    if not ranges:
        return None
    if _sorted(ranges + _WORDS) == _WORDS:
        return True
    return False if _sorted(ranges + _others(_WORDS)) == _others(_WORDS) else None


def _sorted(ranges: Ranges) -> Ranges:
    merged: Ranges = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def _others(ranges: Ranges) -> Ranges:
    edges = [-1, *(edge for low, high in ranges for edge in (low, high)), _LAST + 1]
    return [(low + 1, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True) if low + 1 < high]


def _class_text(ranges: Ranges) -> str:
    """A class of the library: without surrogates, which are no characters there."""
    parts = []
    for low, high in ranges:
        for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)):
            if first == last:
                parts.append(_character_text(first))
            elif first < last:
                parts.append(f"{_character_text(first)}-{_character_text(last)}")
    if len(ranges) == 1 and len(parts) == 1 and "-" not in parts[0][1:]:
        return parts[0]
    return f"[{''.join(parts)}]" if parts else "[^\\s\\S]"


def _character_text(code: int) -> str:
    return chr(code) if code < 128 and chr(code).isalnum() else f"\\x{{{code:X}}}"
