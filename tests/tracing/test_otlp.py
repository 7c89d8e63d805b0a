"""What we write, read by the classes that protobuf makes of OpenTelemetry's own schema."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.tracing.collector import attributes
from tracing import names
from tracing.otlp import encoded_span, export_request
from tracing.spans import Event, Span

IDS = st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}")
TIMES = st.integers(0, 2**63 - 1)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.text(), NUMBERS, st.booleans(), st.floats(allow_nan=False), st.lists(st.text(min_size=1)).map(tuple)
)
ATTRIBUTES = st.dictionaries(st.text(min_size=1), VALUES, max_size=5)


@given(st.data())
def test_spans_are_read_as_they_were_meant(data: st.DataObject) -> None:
    events = data.draw(st.lists(st.builds(Event, st.text(), TIMES, ATTRIBUTES), max_size=3))
    span = Span(
        data.draw(IDS) + data.draw(IDS),
        data.draw(IDS),
        data.draw(st.one_of(st.just(""), IDS)),
        data.draw(st.text()),
        data.draw(TIMES),
        data.draw(TIMES),
        data.draw(ATTRIBUTES),
        tuple(events),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )
    body = export_request({names.SERVICE_NAME: "a", names.SERVICE_VERSION: "1"}, [encoded_span(span)] * 2)
    [part] = ExportTraceServiceRequest.FromString(body).resource_spans
    assert attributes(part.resource) == {names.SERVICE_NAME: "a", names.SERVICE_VERSION: "1"}
    [of_scope] = part.scope_spans
    assert (of_scope.scope.name, of_scope.scope.version, of_scope.schema_url) == ("turnpike", "1", names.SCHEMA_URL)
    for read in of_scope.spans:
        assert (read.trace_id.hex(), read.span_id.hex(), read.parent_span_id.hex()) == (
            span.trace_id,
            span.span_id,
            span.parent_id,
        )
        assert (read.name, read.start_time_unix_nano, read.end_time_unix_nano) == (span.name, span.start, span.end)
        assert (read.kind, read.status.code) == (2 if span.server else 1, 2 if span.error else 0)
        assert attributes(read) == plain(span.attributes)
        assert [(one.name, one.time_unix_nano, attributes(one)) for one in read.events] == [
            (one.name, one.at, plain(one.attributes)) for one in span.events
        ]
    assert len(of_scope.spans) == 2


def plain(given_: object) -> dict[str, object]:
    assert isinstance(given_, dict)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in given_.items()}


def test_the_conventions_names_are_opentelemetrys() -> None:
    """Those that the installed copy of the conventions has too; the others are newer than it."""
    ours = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert all(name.split(".")[0] in ("gen_ai", "turnpike", "service", "http", "error") for name in ours if "." in name
               and not name[0].isdigit() and not name.startswith("https"))  # fmt: skip
    forbidden = ("input.messages", "output.messages", "system_instructions", "stop_sequences", "conversation.id")
    assert not [name for name in ours if any(word in name for word in forbidden)]
