"""What a replica's log says of a request that is traced."""

from __future__ import annotations

import structlog

from tests.engine.conftest import Bench, generate

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_the_end_of_a_traced_request_is_logged_with_its_trace(bench: Bench) -> None:
    with structlog.testing.capture_logs() as logs:
        bench.one(generate("plain", [1, 2, 3], 2))
        bench.one(generate("traced", [1, 2, 3], 2, traceparent=f"00-{TRACE}-b7ad6b7169203331-01"))
    [line] = [line for line in logs if line["event"] == "request ended"]
    assert (line["request_id"], line["trace_id"], line["reason"]) == ("traced", TRACE, "length")
    assert line["output_tokens"] == 2
