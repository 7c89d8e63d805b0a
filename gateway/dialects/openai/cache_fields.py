"""OpenAI's fields for the prompt cache, and `cache_control`, which many clients send here too, to `CacheDirectives`.

Source: https://developers.openai.com/api/docs/guides/prompt-caching and the types of the official client. Where no
field asks for it nothing is promised and nothing is paid for: KV that happens to be there is read at the automatic
price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Protocol, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.dialects.openai.unsupported_fields import UnsupportedFields
from gateway.errors import InvalidField
from gateway.generation_request import CacheDirectives, CacheMarker, partition_of, tag_of

CacheKey: TypeAlias = Annotated[str, Meta(max_length=64)]
CacheSalt: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
ResponseId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]

_RETENTION_CLASSES = {"in_memory": "30m", "in-memory": "30m", "24h": "24h"}
"""`prompt_cache_retention` -> the class of leases."""
TAG_KEYS = ("user", "document")
"""Keys of `metadata` whose values become labels, by which entries can be purged."""


class ExplicitBreakpoint(Struct, frozen=True):
    """Cache the prompt up to the end of the part that has this."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class CacheControl(Struct, frozen=True):
    """Anthropic's marker."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def lease(self) -> str:
        """The class of its lease."""
        return self.ttl or "5m"


class CacheOptions(Struct, frozen=True):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: ResponseId | None = None


class CacheFields(UnsupportedFields, frozen=True, kw_only=True):
    """The fields of OpenAI's endpoints. `cache_control` is not OpenAI's: Anthropic's automatic caching. `cache_salt` is
    vLLM's and SGLang's, `extra_key` SGLang's: each splits the project's cache further, as `prompt_cache_key` does."""

    prompt_cache_key: CacheKey | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    cache_control: CacheControl | None = None
    cache_salt: CacheSalt | None = None
    extra_key: CacheSalt | None = None

    @property
    def partition(self) -> str:
        """The part of the project's cache that the prompt is in."""
        return partition_of(self.prompt_cache_key, self.cache_salt, self.extra_key)

    @property
    def prewarms(self) -> bool:
        """Whether the prompt is to be cached and nothing generated."""
        return bool(self.prompt_cache_options is not None and self.prompt_cache_options.prewarm)


class MarkableTool(Struct, frozen=True, kw_only=True):
    """A tool up to whose end the prompt may be cached: by Anthropic's marker alone, since OpenAI has none for tools."""

    prompt_cache_breakpoint: ClassVar[None] = None
    cache_control: CacheControl | UnsetType | None = UNSET


class MarkedPart(Protocol):
    """A content part, a message or a tool that may be marked."""

    @property
    def prompt_cache_breakpoint(self) -> ExplicitBreakpoint | None:
        """OpenAI's marker."""

    @property
    def cache_control(self) -> CacheControl | UnsetType | None:
        """Anthropic's marker."""


class Marked(Struct, frozen=True):
    """A marked piece: the path of its text, the path of what is marked, and the markers."""

    path: str
    at: str
    part: MarkedPart


def parse_directives(
    fields: CacheFields, marked: Sequence[Marked] = (), metadata: Mapping[str, str] | None = None
) -> CacheDirectives:
    """What these fields say. Raises InvalidRequest naming the field."""
    options, retention = fields.prompt_cache_options, fields.prompt_cache_retention
    if options is None and retention is None and fields.cache_control is None and not marked:
        if not fields.partition:
            return _NOTHING
        return CacheDirectives(partition=fields.partition)
    options = options or CacheOptions()
    lease = options.ttl or (None if retention is None else _RETENTION_CLASSES[retention])
    markers = _markers(marked, lease)
    automatic, automatic_path = _automatic(fields, marked)
    off = options.mode == "explicit" and not markers and not automatic
    if off and options.prewarm:
        raise InvalidField("$.prompt_cache_options.prewarm", "there is no breakpoint to cache anything up to")
    return CacheDirectives(
        markers=markers,
        automatic=automatic,
        automatic_lease=lease if fields.cache_control is None else fields.cache_control.lease,
        automatic_path=automatic_path,
        read=not off,
        store="none" if off else "all",
        partition=fields.partition,
        prewarm=bool(options.prewarm),
        compare_with=options.comparison_response_id,
        tags=tuple(dict.fromkeys(tag_of(metadata[key]) for key in TAG_KEYS if metadata.get(key))) if metadata else (),
    )


_NOTHING = CacheDirectives()


def _automatic(fields: CacheFields, marked: Sequence[Marked]) -> tuple[bool, str]:
    """Whether the rules add a breakpoint, and the path of the field that asks for it.

    Anthropic's markers alone ask for none, as in their own dialect.
    """
    control, options = fields.cache_control, fields.prompt_cache_options
    if control is not None:
        if options is not None and options.ttl is not None:
            raise InvalidField("$.cache_control", "it cannot be combined with $.prompt_cache_options.ttl")
        return True, "$.cache_control"
    if options is not None:
        return options.mode != "explicit", "$.prompt_cache_options"
    if fields.prompt_cache_retention is not None:
        return True, "$.prompt_cache_retention"
    first = next((piece for piece in marked if piece.part.prompt_cache_breakpoint is not None), None)
    return (False, "$") if first is None else (True, f"{first.at}.prompt_cache_breakpoint")


def _markers(marked: Sequence[Marked], lease: str | None) -> tuple[CacheMarker, ...]:
    markers = []
    for piece in marked:
        own, control = piece.part.prompt_cache_breakpoint, piece.part.cache_control
        if own is not None:
            markers.append(CacheMarker(piece.path, f"{piece.at}.prompt_cache_breakpoint", own.ttl or lease))
        if control:
            markers.append(CacheMarker(piece.path, f"{piece.at}.cache_control", control.lease))
    return tuple(markers)
