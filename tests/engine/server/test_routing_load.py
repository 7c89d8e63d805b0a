"""What a replica tells gateways of its queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine.server.routing_load import RoutingLoad
from protocol.prefixes import prefix_names
from protocol.requests import Began, Counts, Done, Generate, Route, Sampling, Tokens


def gateway(name: str) -> Any:
    return SimpleNamespace(gateway=name)


def request(id: str, *, tokens: int = 640, expected: int | None = None, **changes: Any) -> Generate:
    prompt = list(range(tokens))
    route = None if expected is None else Route(prefix_names(b"k", prompt), expected, 64, 9.0)
    made = {"segments": (), "sampling": Sampling(max_tokens=5), "credit": 5, "route": route, **changes}
    return Generate(id=id, attempt=1, tokens=prompt, **made)


class Bench:
    def __init__(self) -> None:
        self.now, self.changes = 100.0, 0
        self.load = RoutingLoad(lambda: 0.001, self._changed, lambda: self.now)

    def _changed(self) -> None:
        self.changes += 1

    def queued(self, lane: str = "standard") -> int:
        return self.load.message_for(gateway("?"), 10**9)[0].queued[lane]


def test_a_request_counts_until_its_prompt_is_computed_and_decodes_until_its_end() -> None:
    bench = Bench()
    bench.load.add(gateway("a"), request("1", expected=500, choices=2))
    assert bench.queued() == 500
    bench.load.observe([Began("1", 1, Counts(prompt=640, computed=400, read_hbm=240))])
    assert bench.queued() == 400
    bench.now += 0.1
    assert bench.queued() == 300, "a part of it is computed"
    bench.load.observe([Tokens("1", 1, 0, [5])])
    assert (bench.queued(), bench.load.message_for(gateway("a"), 0)[0].decodes) == (0, 2)
    changes = bench.changes
    bench.load.observe([Tokens("1", 1, 1, [6])])
    assert bench.changes == changes, "further tokens are no news"
    bench.load.observe([Done("1", 1, "length", Counts(), 1)])
    assert bench.load.message_for(gateway("a"), 0)[0].decodes == 0


def test_a_prefix_that_several_wait_for_counts_once() -> None:
    bench = Bench()
    for number in range(3):
        bench.load.add(gateway("a"), request(str(number), tokens=650, expected=650))
    assert bench.queued() == 650 + 2 * 10
    bench.load.observe([Done("0", 1, "rejected", Counts(), 0), Done("1", 1, "abort", Counts(), 0)])
    assert bench.queued() == 10
    bench.load.observe([Done("2", 1, "abort", Counts(), 0)])
    bench.load.add(gateway("a"), request("3", tokens=650, expected=650))
    assert bench.queued() == 650, "nobody computes it any more"


def test_a_gateway_hears_what_others_sent_once() -> None:
    bench = Bench()
    a, b = gateway("a"), gateway("b")
    bench.load.add(a, request("1", expected=640))
    bench.load.add(b, request("2", expected=640))
    told, serial = bench.load.message_for(a, 0)
    assert [(sent.leased, sent.until) for sent in told.prefixes] == [(64, 9.0)]
    assert bench.load.message_for(a, serial)[0].prefixes == ()
    bench.load.add(b, request("3", tokens=64, expected=64))
    assert [len(sent.names) for sent in bench.load.message_for(a, serial)[0].prefixes] == [8]
    assert len(bench.load.message_for(gateway("new"), 0)[0].prefixes) == 3, "who connects later hears all"


def test_gateways_that_tell_no_route_count_with_the_whole_prompt() -> None:
    bench = Bench()
    bench.load.add(gateway("a"), request("1", lane="batch"))
    assert bench.queued("batch") == 640
    assert bench.load.message_for(gateway("b"), 0)[0].prefixes == ()
