"""Replicas found by DNS: they come, go, change addresses and names, and no request is lost of it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from billing.verification import audit
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica_discovery import MOST_REPLICAS
from gateway.fleet.replica_link import FleetOptions, ReplicaLink
from gateway.served_models.registry import ModelRegistry
from gateway.served_models.served_model import ServedModel
from protocol.addresses import AddressError
from protocol.service_names import (
    ServiceName,
    expand_service_names,
    parse_service_names,
    replica_addresses,
    resolve_by_system,
)
from tests.gateway.fake_replica import LINK_KEY, FakeReplica
from tests.gateway.generation.test_lifecycle import STREAM, WHOLE, content, frames
from tests.gateway.stack import Stack, running_stack
from tests.waiting import until

NOTICED_S = 1.0
"""The bar: how soon a gateway with the default settings has noticed what DNS says."""


class FakeDns:
    """The addresses of every name; `down`: nothing answers."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: Sequence[str] = hosts
        self.down = False
        self.lookups = 0

    async def resolve(self, name: ServiceName) -> Sequence[str]:
        self.lookups += 1
        if self.down:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self.hosts

    async def answered(self) -> None:
        """Wait until a lookup that began after now has ended."""
        seen = self.lookups
        await until(lambda: self.lookups > seen + 1)


def free_port_of_all() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


@asynccontextmanager
async def fleet_found(
    model: ServedModel, dns: FakeDns, folder: Path, replicas: int, *fixed: str, **options: float
) -> AsyncIterator[tuple[Fleet, list[FakeReplica]]]:
    """A fleet whose replicas, which run, have all the same port and addresses from 127.0.1.1 on."""
    port = free_port_of_all()
    fakes = [
        FakeReplica(folder, model.text_digest, name=f"replica-{at}", host=f"127.0.1.{at + 1}", port=port)
        for at in range(replicas)
    ]
    quick = FleetOptions(**{"lookup": 0.02, "backoff_first": 0.01, "backoff_most": 0.05, **options})
    fleet = Fleet(
        [*fixed, f"dns:engines.test:{port}"],
        gateway="g",
        link_key=LINK_KEY,
        models=ModelRegistry([model]),
        options=quick,
        resolve=dns.resolve,
    )
    for fake in fakes:
        await fake.start()
    fleet.start()
    try:
        yield fleet, fakes
    finally:
        await fleet.stop()
        for fake in fakes:
            await fake.stop()


def healthy(fleet: Fleet) -> list[str]:
    return sorted(link.replica for link in fleet.healthy("tiny"))


def hosts_of(links: Sequence[ReplicaLink]) -> list[str]:
    return sorted(link.address.host for link in links)


# ---------------------------------------------------------------- names and answers


@pytest.mark.parametrize("text", ["dns:", "dns:engines", "dns::7700", "dns:engines:0", "dns:engines:x", "dns:a..b:1"])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(AddressError, match="expected dns:HOST:PORT, such as dns:engines"):
        parse_service_names([text])


def test_names_stand_beside_addresses() -> None:
    names, addresses = parse_service_names(["tcp:h:1", "dns:engines.svc.:7700", "unix:/a"])
    assert [(name.host, name.port) for name in names] == [("engines.svc.", 7700)]
    assert addresses == ["tcp:h:1", "unix:/a"]


def test_a_host_of_both_families_is_one_replica() -> None:
    name = ServiceName("dns:h:7", "h", 7)
    assert replica_addresses(name, ["10.0.0.1", "fd00::1", "10.0.0.1"]) == {"tcp:10.0.0.1:7"}
    assert replica_addresses(name, ["fd00::1", "fd00:0::1"]) == {"tcp:[fd00::1]:7"}


async def test_commands_ask_the_replicas_behind_a_name() -> None:
    dns = FakeDns("10.0.0.2", "10.0.0.1")
    assert await expand_service_names(["unix:/a", "dns:h:7"], dns.resolve) == [
        "unix:/a",
        "tcp:10.0.0.1:7",
        "tcp:10.0.0.2:7",
    ]
    dns.down = True
    assert await expand_service_names(["dns:h:7"], dns.resolve) == ["dns:h:7"]


async def test_the_system_is_asked() -> None:
    name = ServiceName("dns:localhost:7", "localhost", 7)
    assert replica_addresses(name, await resolve_by_system(name)) <= {"tcp:127.0.0.1:7", "tcp:[::1]:7"}
    with pytest.raises(OSError):  # noqa: PT011  # the words are the system's
        await resolve_by_system(ServiceName("dns:no.invalid:7", "no.invalid", 7))


# ---------------------------------------------------------------- links


async def test_replicas_come_and_go(model: ServedModel, tmp_path: Path) -> None:
    dns = FakeDns()
    async with fleet_found(model, dns, tmp_path, 3) as (fleet, fakes):
        await dns.answered()
        assert fleet.links == []
        dns.hosts = ["127.0.1.1", "127.0.1.2"]
        await until(lambda: healthy(fleet) == ["replica-0", "replica-1"])
        dns.hosts = ["127.0.1.2", "127.0.1.3"]
        await until(lambda: healthy(fleet) == ["replica-1", "replica-2"])
        await fakes[0].stop()
        await until(lambda: hosts_of(fleet.links) == ["127.0.1.2", "127.0.1.3"])
        tasks = len(asyncio.all_tasks())
        for _ in range(3):  # nothing is left of an address that came and went
            dns.hosts = ["127.0.1.2", "127.0.1.3", "127.0.1.9"]
            await until(lambda: len(fleet.links) == 3)
            dns.hosts = ["127.0.1.2", "127.0.1.3"]
            await until(lambda: len(fleet.links) == 2)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_one_that_left_keeps_its_link_and_gets_nothing_new_until_it_is_back(
    model: ServedModel, tmp_path: Path
) -> None:
    dns = FakeDns("127.0.1.1", "127.0.1.2")
    async with fleet_found(model, dns, tmp_path, 2) as (fleet, fakes):
        await until(lambda: len(healthy(fleet)) == 2)
        dns.hosts = ["127.0.1.2"]
        await until(lambda: healthy(fleet) == ["replica-1"])
        await dns.answered()
        assert [link.up for link in fleet.links] == [True, True]
        dns.hosts = ["127.0.1.1", "127.0.1.2"]
        await until(lambda: len(healthy(fleet)) == 2)
        assert len(fakes[0].dials) == 1


async def test_the_last_answer_stands_while_dns_is_down_or_empty(
    model: ServedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dns = FakeDns("127.0.1.1", "127.0.1.2")
    async with fleet_found(model, dns, tmp_path, 2) as (fleet, fakes):
        await until(lambda: len(healthy(fleet)) == 2)
        dns.down = True
        await dns.answered()
        await fakes[0].stop()
        await until(lambda: healthy(fleet) == ["replica-1"])
        await dns.answered()
        await fakes[0].restart()  # where it was
        await until(lambda: len(healthy(fleet)) == 2)
        dns.down, dns.hosts = False, []
        await dns.answered()
        assert len(healthy(fleet)) == 2
        assert caplog.text.count("Temporary failure in name resolution") == 1
        assert "the name has no address" in caplog.text


async def test_a_new_epoch_at_another_address_ends_the_old_link(model: ServedModel, tmp_path: Path) -> None:
    """A pod whose node died closes nothing: its connection would stand until the silence is noticed."""
    dns = FakeDns("127.0.1.1")
    async with fleet_found(model, dns, tmp_path, 2) as (fleet, (old, new)):
        await until(lambda: healthy(fleet) == ["replica-0"])
        new.name, new.epoch = old.name, old.epoch + 1
        dns.hosts = ["127.0.1.2"]
        await until(lambda: [link.address.host for link in fleet.healthy("tiny")] == ["127.0.1.2"])
        await until(lambda: hosts_of(fleet.links) == ["127.0.1.2"])


async def test_one_replica_at_two_addresses_has_one_link(model: ServedModel, tmp_path: Path) -> None:
    dns = FakeDns("127.0.1.1")
    async with fleet_found(model, dns, tmp_path, 2) as (fleet, (one, same)):
        await until(lambda: healthy(fleet) == ["replica-0"])
        same.name = one.name
        dns.hosts = ["127.0.1.1", "127.0.1.2"]
        await until(lambda: any("connected already, at tcp:127.0.1.1" in link.problem for link in fleet.links))
        assert hosts_of(fleet.healthy("tiny")) == ["127.0.1.1"]
        dns.hosts = ["127.0.1.2"]  # its address changed while it runs
        await until(lambda: hosts_of(fleet.healthy("tiny")) == ["127.0.1.2"])


async def test_a_silent_link_that_left_is_dropped_without_waiting_for_more(model: ServedModel, tmp_path: Path) -> None:
    dns = FakeDns("127.0.1.1", "127.0.1.2")
    async with fleet_found(model, dns, tmp_path, 2, beat_timeout=0.3, silence=60.0) as (fleet, fakes):
        await until(lambda: len(healthy(fleet)) == 2)
        fakes[0].beating = False
        dns.hosts = ["127.0.1.2"]
        await until(lambda: hosts_of(fleet.links) == ["127.0.1.2"])


async def test_addresses_of_a_name_are_bounded_and_fixed_ones_stay(model: ServedModel, tmp_path: Path) -> None:
    dns = FakeDns("127.0.1.1")
    fixed = f"unix:{tmp_path / 'nobody'}"
    async with fleet_found(model, dns, tmp_path, 1, fixed, backoff_first=5.0, backoff_most=5.0) as (fleet, _):
        await until(lambda: healthy(fleet) == ["replica-0"])
        dns.hosts = [*(f"127.0.0.{at}" for at in range(2, 252)), *(f"127.0.1.{at}" for at in range(1, 100))]
        await until(lambda: len(fleet.links) == 1 + MOST_REPLICAS)
        await dns.answered()
        assert len(fleet.links) == 1 + MOST_REPLICAS
        assert healthy(fleet) == ["replica-0"]  # those that are known stay among them
        dns.hosts = ["127.0.1.1"]
        await until(lambda: [link.address.text for link in fleet.links[:1]] == [fixed] and len(fleet.links) == 2)


# ---------------------------------------------------------------- a whole gateway


@pytest.fixture
async def found(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[tuple[Stack, FakeDns]]:
    """A gateway with the default times of lookups and two replicas, of which none is in DNS yet."""
    dns = FakeDns()
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, replicas=2, resolve=dns.resolve) as stack:
        for at, replica in enumerate(stack.replicas):
            replica.host, replica.port = f"127.0.2.{at + 1}", 7700
            await replica.start()
        yield stack, dns


@pytest.mark.slow
async def test_pods_come_go_and_change_addresses_under_load(found: tuple[Stack, FakeDns]) -> None:
    """No request is lost, the books are right, and each change is noticed in a second."""
    stack, dns = found
    first, second = stack.replicas
    text = "one two three four five six "
    for replica in stack.replicas:
        stack.say(text, pause=0.01)
        replica.script = stack.replica.script
    answers: list[str] = []
    over = asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            answer = await stack.post(STREAM if len(answers) % 2 else WHOLE)
            assert answer.status_code == 200, answer.text
            streamed = answer.headers["content-type"].startswith("text/event-stream")
            body = content(frames(answer.text)) if streamed else answer.json()["choices"][0]["message"]["content"]
            assert body == text
            answers.append(body)

    async def noticed(*hosts: str) -> None:
        began = time.monotonic()
        dns.hosts = hosts
        await stack.until(lambda: hosts_of(stack.gateway.services.fleet.healthy("tiny")) == sorted(hosts))
        assert time.monotonic() - began < NOTICED_S
        served = len(answers)
        await stack.until(lambda: not clients or len(answers) >= served + 4)

    clients: list[asyncio.Task[None]] = []
    await noticed("127.0.2.1")
    clients = [asyncio.create_task(ask()) for _ in range(4)]
    await noticed("127.0.2.1", "127.0.2.2")  # one comes
    await noticed("127.0.2.2")  # one goes
    await stack.until(lambda: not any(run.task and not run.task.done() for run in first.runs.values()))
    await first.stop()
    first.host = "127.0.2.7"  # and comes back somewhere else
    await first.restart()
    await noticed("127.0.2.2", "127.0.2.7")
    dns.down = True
    await second.stop()  # one dies while DNS is down
    await second.restart()
    served = len(answers)
    await stack.until(lambda: len(answers) >= served + 8)
    over.set()
    await asyncio.gather(*clients)
    while "open" in await stack.holds():  # noqa: ASYNC110  # the test's own limit ends it
        await asyncio.sleep(0.01)
    billed = [event for event in await stack.events() if event.cost_pico]  # a lost attempt costs nothing
    assert len(billed) == len(answers)
    assert {event.replica for event in billed} == {"replica-0", "replica-1"}
    assert await audit.audit_money(stack.database) == []
