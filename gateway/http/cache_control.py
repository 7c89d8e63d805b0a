"""The request header `Cache-Control` (RFC 9111), for the cache of prompts: never for answers, none of which is stored.

- `no-store`: the prompt's KV stays in the device's memory, and no lease is written.
- `no-cache`: nothing is read from the cache; what is computed may be stored.
- `only-if-cached`: fail with status 412 unless a lease is read.
- `max-age=N`: leases that were written more than N seconds ago are not read. With 0 it is `no-cache`.

The body may ask for the opposite by the dialect's own fields. That is an error, which names the header. Unknown
directives are ignored, as the standard demands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from gateway.errors import InvalidField
from gateway.generation_request import CacheDirectives, GenerationRequest

HEADER = "Cache-Control"
_NUMBERS = re.compile(r"[0-9]{1,10}")
_MOST_SECONDS = 2**31
"""A larger number is taken for this one, as the standard says."""
_LONGEST = 4096
"""Characters of the header."""
# Possessive quantifiers: what was taken is never given back, so that no header takes more than one pass.
_DIRECTIVE = re.compile(
    r"""[ \t]*+(?:
        (?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]++)
        (?:[ \t]*+=[ \t]*+(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<token>[^,"]*+)))?
    )?[ \t]*+(?:,|$)""",
    re.VERBOSE,
)


class CacheControl(Struct, frozen=True):
    """What the header says."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age: int | None = None


def parse_cache_control(values: Iterable[str]) -> CacheControl | None:
    """What the header's lines say; None if nothing that matters here. Raises InvalidRequest naming the header."""
    said = dict.fromkeys(("no-store", "no-cache", "only-if-cached"), False)
    max_age: int | None = None
    header = ", ".join(values)
    if len(header) > _LONGEST:
        raise InvalidField(HEADER, f"it has {len(header)} characters, more than {_LONGEST}")
    for name, argument in _directives(header):
        if name in said:
            said[name] = True
        elif name == "max-age":
            seconds = _seconds(argument)
            if max_age not in (None, seconds):
                raise InvalidField(HEADER, "it has two different values of max-age")
            max_age = seconds
    control = CacheControl(said["no-store"], said["no-cache"] or max_age == 0, said["only-if-cached"], max_age)
    if control.only_if_cached and control.no_cache:
        raise InvalidField(HEADER, "only-if-cached cannot be combined with no-cache or max-age=0")
    return None if control == CacheControl() else control


def apply_cache_control(control: CacheControl | None, generation: GenerationRequest) -> GenerationRequest:
    """The request with what the header says of it. Raises InvalidRequest naming the header if the body says other."""
    if control is None:
        return generation
    return replace(generation, cache=_combined(control, generation.cache))


def _combined(control: CacheControl, said: CacheDirectives) -> CacheDirectives:
    if control.no_store and (said.markers or said.automatic or said.prewarm):
        raise InvalidField(HEADER, "no-store contradicts the body, which asks to cache the prompt")
    if control.only_if_cached and not said.read:
        raise InvalidField(HEADER, "only-if-cached contradicts the body, which turns caching off")
    return replace(
        said,
        read=said.read and not control.no_cache,
        store="hbm" if control.no_store and said.store == "all" else said.store,
        only_if_cached=control.only_if_cached,
        max_age=control.max_age,
    )


def _directives(header: str) -> Iterator[tuple[str, str | None]]:
    """The directives, in small letters, and their arguments. What is no directive is skipped up to the next comma."""
    at = 0
    while at < len(header):
        match = _DIRECTIVE.match(header, at)
        if match is None:
            comma = header.find(",", at)
            at = len(header) if comma < 0 else comma + 1
            continue
        at = match.end()
        if match["name"]:
            argument = match["token"] if match["quoted"] is None else match["quoted"]
            yield match["name"].lower(), argument


def _seconds(argument: str | None) -> int:
    text = (argument or "").strip(" \t")
    if not _NUMBERS.fullmatch(text):
        if text.isascii() and text.isdecimal():
            return _MOST_SECONDS
        raise InvalidField(HEADER, f"max-age is {text[:20]!r}, not a number of seconds")
    return min(int(text), _MOST_SECONDS)
