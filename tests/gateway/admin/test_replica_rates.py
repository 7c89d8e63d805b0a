"""What the fleet's objects and /metrics say of a replica's work and costs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gateway.fleet.replica_rates import DeviceCosts, FleetRates
from gateway.services import GatewayOptions
from tests.gateway.stack import quick_timeouts, running_stack

COSTS = DeviceCosts(currency="EUR", hour_cost=3.6, gigabytes=1.0, devices=2)


class Link:
    """A link as rates see it."""

    def __init__(self) -> None:
        self.up = True
        self.hello: Any = SimpleNamespace(epoch=1)
        self.beat: Any = SimpleNamespace(metrics={})

    def __call__(self, **counters: float) -> None:
        self.beat = SimpleNamespace(metrics={f"turnpike_engine_{name}_total": at for name, at in counters.items()})


def test_rates_are_of_the_last_minute_and_begin_anew_with_a_replica() -> None:
    link: Any = Link()
    rates = FleetRates([link], COSTS)
    for second in range(0, 100, 5):
        link(steps=10.0 * second, step_seconds=second / 2)
        rates.sample(float(second))
    found = rates.of(link)
    assert found is not None
    assert (found.seconds, found.steps, found.busy) == (60.0, 10.0, 0.5)
    link.hello = SimpleNamespace(epoch=2)
    rates.sample(100.0)
    assert rates.of(link) is None
    rates.sample(105.0)
    assert rates.of(link) is not None
    link.up = False
    rates.sample(110.0)
    assert rates.of(link) is None


async def test_what_is_published(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), costs=COSTS)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        await stack.until(lambda: stack.gateway.services.fleet.links[0].beat is not None)
        stack.say("yes")
        answer = await stack.post({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2})
        assert answer.status_code == 200
        metrics = (await stack.http.get("/metrics")).text
        assert 'turnpike_replica_cost_per_hour{model="tiny",replica="replica-0"} 7.2' in metrics
        assert 'turnpike_replica_lane_seconds_total{lane="batch",model="tiny",replica="replica-0"}' in metrics
        assert 'turnpike_billed_money_total{currency="USD",lane="standard",model="tiny"}' in metrics
        assert "turnpike_oldest_hold_seconds" in metrics
