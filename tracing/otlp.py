"""Writes spans as OTLP does: the message `ExportTraceServiceRequest` of opentelemetry-proto 1, in Protocol Buffers.

The few messages and types that a trace needs are written here directly: that takes half as long as the classes that
protobuf makes of the schema, and needs no package. The tests read what is written by those classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct as Layout

from tracing import names
from tracing.spans import Attributes, Event, Span, Value

CONTENT_TYPE = "application/x-protobuf"
_FIXED = Layout("<Q").pack
_DOUBLE = Layout("<d").pack
_VARINT_TYPE, _FIXED64_TYPE, _BYTES_TYPE = 0, 1, 2
_INTERNAL, _SERVER = 1, 2
"""Span.SpanKind."""
_ERROR = 2
"""Status.StatusCode."""


def export_request(resource: Mapping[str, str], spans: Iterable[bytes]) -> bytes:
    """The body of a POST to a collector's /v1/traces. `spans`: as `encoded_span` writes them."""
    scope = _field(1, _text(1, "turnpike") + _text(2, resource.get(names.SERVICE_VERSION, "")))
    of_scope = scope + b"".join(_field(2, span) for span in spans) + _text(3, names.SCHEMA_URL)
    described = _attributes(_TAGS[1], resource)
    return _field(1, _field(1, described) + _field(2, of_scope) + _text(3, names.SCHEMA_URL))


def encoded_span(span: Span) -> bytes:
    """The message `Span`."""
    return b"".join(
        (
            _field(1, bytes.fromhex(span.trace_id)),
            _field(2, bytes.fromhex(span.span_id)),
            _field(4, bytes.fromhex(span.parent_id)) if span.parent_id else b"",
            _text(5, span.name),
            _SERVER_KIND if span.server else _INTERNAL_KIND,
            _START + _FIXED(span.start),
            _END + _FIXED(span.end),
            _attributes(_TAGS[9], span.attributes),
            *(_field(11, _event(event)) for event in span.events),
            _FAILED if span.error else b"",
        )
    )


def _event(event: Event) -> bytes:
    return _AT + _FIXED(event.at) + _text(2, event.name) + _attributes(_TAGS[3], event.attributes)


def _attributes(tag: bytes, attributes: Attributes) -> bytes:
    """Messages `KeyValue`, each a field with this tag. Most of what is written is these: nothing is called for one that
    is short."""
    written: list[bytes] = []
    for key, value in attributes.items():
        content = _INT + _LENGTHS[value] if type(value) is int and 0 <= value < 128 else _any_value(value)
        pair = (_KEYS.get(key) or _key(key)) + _VALUE + _size(content) + content
        written += (tag, _LENGTHS[len(pair)] if len(pair) < 128 else _varint(len(pair)), pair)
    return b"".join(written)


def _key(key: str) -> bytes:
    written = _text(1, key)
    if len(_KEYS) < _MOST_KEYS:
        _KEYS[key] = written
    return written


def _any_value(value: Value) -> bytes:
    """The message `AnyValue`."""
    if isinstance(value, str):
        return _text(1, value)
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int):
        return _INT + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return _A_DOUBLE + _DOUBLE(value)
    return _field(5, b"".join(_field(1, _text(1, one)) for one in value))


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode(errors="replace"))


def _field(number: int, content: bytes) -> bytes:
    return _TAGS[number] + _size(content) + content


def _size(content: bytes) -> bytes:
    return _LENGTHS[len(content)] if len(content) < 128 else _varint(len(content))


def _varint(number: int) -> bytes:
    """An unsigned integer, seven bits a byte, the lowest first."""
    if number < 1 << 14:
        return _LENGTHS[number] if number < 128 else bytes((number & 127 | 128, number >> 7))
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


_LENGTHS: Sequence[bytes] = [bytes((length,)) for length in range(128)]
_TAGS: Sequence[bytes] = [_tag(number, _BYTES_TYPE) for number in range(17)]
_START, _END, _AT = _tag(7, _FIXED64_TYPE), _tag(8, _FIXED64_TYPE), _tag(1, _FIXED64_TYPE)
_SERVER_KIND, _INTERNAL_KIND = (_tag(6, _VARINT_TYPE) + _varint(kind) for kind in (_SERVER, _INTERNAL))
_FAILED = _field(15, _tag(3, _VARINT_TYPE) + _varint(_ERROR))
_INT, _A_DOUBLE = _tag(3, _VARINT_TYPE), _tag(4, _FIXED64_TYPE)
_VALUE = _TAGS[2]
_KEYS: dict[str, bytes] = {}
"""Keys as they are written: there are few."""
_MOST_KEYS = 1000
_TRUE, _FALSE = (_tag(2, _VARINT_TYPE) + _varint(truth) for truth in (1, 0))
