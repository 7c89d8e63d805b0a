"""One world: processes, clients and faults as a seed picks them, and its quiet end, in which all must come to rest."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from litestar import Litestar
from msgspec import Struct
from sqlalchemy import func, select

from audit_log.actors import Actor, acting_as
from billing.accounts.balances import Balances
from billing.prices import PriceCatalog
from billing.tables.money import hold_batch
from engine.scheduling.request import Request
from engine.server.replica import Replica
from gateway.served_models.served_model import ServedModel
from gateway.services import Gateway
from protocol.requests import Began, Done
from simulation import process_seams, replica
from simulation.bus import BusServer, SimulatedBus
from simulation.clients import Client, Seen
from simulation.database import DatabaseServer
from simulation.disk import Disk
from simulation.gateway import PEPPERS, make_gateway
from simulation.loop import SimulatedLoop
from simulation.network import Network
from simulation.nodes import Node, present_node
from simulation.replica import Script, SimulatedEngineLoop, serve_replica
from storage.bus import LocalBus
from storage.database import migrate
from storage.database.database import Database
from tenancy.repositories import Tenancy

GRANTS = (10 * 10**12, 3 * 10**7)
"""What the tenants have, in pico: one has plenty, the other's money ends."""
PRICES = {"uncached": "0.40", "read_automatic": "0.04", "output": "1.60"}
_REST_S = 120.0
"""How long a world may take to come to rest."""


class Plan(Struct, kw_only=True):
    """What a seed makes of a world. Shares of commits; seconds; how many."""

    gateways: int = 1
    replicas: int = 1
    clients: int = 4
    requests: int = 3
    seconds: float = 20.0
    kills: int = 0
    power: float = 0.0
    """How many kills take the power too, as a share."""
    partitions: int = 0
    full_disks: int = 0
    broken_disks: int = 0
    outages: int = 0
    bus_outages: int = 0
    conflicts: float = 0.0
    unacknowledged: float = 0.0
    broken: float = 0.0
    slowness: float = 1.0
    shuffle: float = 0.5
    skew_s: float = 0.0
    jumps: int = 0
    keyed: float = 0.0
    patience: float = 60.0
    """Seconds after which an impatient client leaves, on average."""
    shared_folder: bool = False

    @classmethod
    def of(cls, chance: random.Random) -> Plan:
        """The plan of a seed: most worlds have few kinds of faults, so that each shows what it does."""

        def sometimes(share: float, most: int) -> int:
            return chance.randint(1, most) if chance.random() < share else 0

        return cls(
            gateways=chance.choice((1, 2, 2)),
            replicas=chance.choice((1, 2, 2)),
            clients=chance.randint(2, 6),
            requests=chance.randint(1, 4),
            seconds=chance.uniform(3.0, 12.0),
            kills=sometimes(0.75, 4),
            power=chance.choice((0.0, 0.3, 1.0)),
            partitions=sometimes(0.25, 2),
            full_disks=sometimes(0.15, 1),
            broken_disks=sometimes(0.15, 2),
            outages=sometimes(0.2, 1),
            bus_outages=sometimes(0.1, 1),
            conflicts=chance.choice((0.0, 0.0, 0.05)),
            unacknowledged=chance.choice((0.0, 0.05, 0.2)),
            broken=chance.choice((0.0, 0.0, 0.1)),
            slowness=chance.choice((1.0, 1.0, 10.0)),
            shuffle=chance.choice((0.0, 0.5, 0.9)),
            skew_s=chance.choice((0.0, 0.0, 2.0)),
            jumps=sometimes(0.15, 2),
            keyed=chance.choice((0.0, 0.3)),
            patience=chance.choice((60.0, 60.0, 2.0)),
            shared_folder=chance.random() < 0.5,
        )


class Machine:
    """The clocks of a world, and its random bytes."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random, began_ns: int) -> None:
        self.random_bytes = chance
        self._loop = loop
        self._began_ns = began_ns

    def monotonic_ns(self) -> int:
        """Nanoseconds since the world began."""
        return self._loop.now_ns

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, by the clock of the process that asks."""
        node = present_node()
        return self._began_ns + self._loop.now_ns + (0 if node is None else node.skew_ns)

    def database_us(self) -> int:
        """The database's clock."""
        return (self._began_ns + self._loop.now_ns) // 1000


class Surroundings:
    """What a world runs on: a loop, a network, a disk, a database and a bus, each with a chance of its own."""

    def __init__(self, seed: int, root: Path, began_ns: int) -> None:
        chances = [random.Random(f"{seed}/{part}") for part in ("loop", "net", "disk", "database", "bus", "bytes")]
        self.network = Network(chances[1])
        self.loop = SimulatedLoop(chances[0], self.network)
        self.disk = Disk(root, chances[2])
        self.machine = Machine(self.loop, chances[5], began_ns)
        self.database = DatabaseServer(self.loop, chances[3], self.machine.database_us)
        self.bus = BusServer(chances[4])
        self.root = root

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end, all by itself in this process."""
        process_seams.use(self.machine)
        self.database.install()
        try:
            asyncio.set_event_loop(self.loop)
            return self.loop.run_until_complete(work)
        finally:
            process_seams.use(None)


class Account(Struct):
    """A tenant of the world: its id, a key of its project, and what it was granted, in pico."""

    tenant: Any
    api_key: str
    granted: int


def stock(root: Path) -> tuple[Path, list[Account]]:
    """Make the database that all worlds begin with; the same in each process. Returns its file."""
    path = root / "template.db"
    surroundings = Surroundings(0, root, process_seams.START_S * 10**9)

    async def fill() -> list[Account]:
        await migrate.upgrade(f"sqlite:///{path}")
        database = await surroundings.database.open(str(path))
        tenancy, accounts = Tenancy(database, PEPPERS, LocalBus()), []
        await PriceCatalog(database).set("tiny", "USD", PRICES)
        for number, granted in enumerate(GRANTS):
            tenant = await tenancy.create_tenant(f"tenant-{number}")
            project = await tenancy.create_project(tenant.id, "default")
            await Balances(database).grant(tenant.id, granted, "USD")
            issued = await tenancy.create_key(tenant.id, project.id)
            accounts.append(Account(tenant.id, issued.key, granted))
        await database.close()
        return accounts

    with acting_as(Actor("system", "simulation", "simulation")):
        accounts: list[Account] = surroundings.run(fill())
    return path, accounts


class Process(Struct):
    """A place where a process runs, dies and is started again."""

    name: str
    folder: Path
    node: Node
    task: asyncio.Task[Any] | None = None
    starts: int = 0
    app: Litestar | None = None
    gateway: Gateway | None = None
    replica: Replica | None = None
    wanted: bool = True


class World:
    """A world of this plan. `seen` is what its clients saw."""

    def __init__(
        self, surroundings: Surroundings, plan: Plan, chance: random.Random, model: ServedModel, accounts: list[Account]
    ) -> None:
        self.plan = plan
        self.chance = chance
        self.model = model
        self.script = Script(model, self.note_sampled)
        self.accounts = accounts
        self.seen: list[Seen] = []
        self.began: dict[str, list[int]] = {}
        """Each request that a replica began, with its prompt's tokens."""
        self.forgotten: set[str] = set()
        """Those that a journal may have lost with the power."""
        self.powerless: set[str] = set()
        """The replicas that lost their power."""
        self.sampled: Counter[str] = Counter()
        """How many tokens were computed for a request, by all replicas."""
        self.broken_rules: list[str] = []
        """What did not hold in some step."""
        self.faults: list[str] = []
        self.calm = False
        self._at = surroundings
        self.path = str(surroundings.root / "world.db")
        root = surroundings.root
        self.replicas = [
            Process(f"replica-{number}", root / f"replica-{number}", Node(f"replica-{number}"))
            for number in range(plan.replicas)
        ]
        self.gateways = [
            Process(
                f"gateway-{number}",
                root / ("gateways" if plan.shared_folder else f"gateway-{number}"),
                Node(f"gateway-{number}"),
            )
            for number in range(plan.gateways)
        ]
        self._addresses = [f"unix:/{process.name}" for process in self.replicas]

    async def run(self) -> Database:
        """Live: begin, let things happen, let faults end, and come to rest. Returns the database."""
        plan, at, loop = self.plan, self._at, self._at.loop
        loop.shuffle, loop.slowness, at.network.slowness = plan.shuffle, plan.slowness, plan.slowness
        loop.on_step = self._stepped
        keepers = [loop.create_task(self._keep(process)) for process in (*self.replicas, *self.gateways)]
        await self._until(lambda: any(self._ready(process) for process in self.gateways), 30.0)
        server = at.database
        server.conflicts, server.unacknowledged, server.broken = plan.conflicts, plan.unacknowledged, plan.broken
        faults = loop.create_task(self._let_faults_happen())
        clients = [loop.create_task(self._client(number)) for number in range(plan.clients)]
        await asyncio.wait(clients)
        await faults
        self._let_all_be_well()
        await self._come_to_rest()
        for keeper in keepers:
            keeper.cancel()
        await self._stop_gateways()
        return await server.open(self.path)

    async def _stop_gateways(self) -> None:
        """Stop each in order: then allowances are given back."""
        for process in self.gateways:
            if process.node.alive and process.gateway is not None:
                await process.node.start(process.gateway.stop())

    # ------------------------------------------------ processes

    async def _keep(self, process: Process) -> None:
        """Start a process, again and again."""
        while True:
            node = process.node
            if self.plan.skew_s:
                node.skew_ns = round(self.chance.uniform(-self.plan.skew_s, self.plan.skew_s) * 1e9)
            process.starts += 1
            work = self._serve(process) if process in self.gateways else self._replica(process)
            process.task = node.start(work)
            while node.alive and not process.task.done():
                await asyncio.sleep(0.05)
            if node.alive:  # it stopped by itself, or could not start
                self._note(f"{process.name} ended: {_why(process.task)}")
                node.die()
            process.app = process.gateway = process.replica = None
            await asyncio.sleep(self.chance.uniform(0.05, 1.5))
            if node.dies_at_write is not None and self._loses_power(process):
                self._note(f"{process.name} loses its power")
                self._at.disk.lose_power(process.folder / "spool" if process in self.gateways else process.folder)
                if process in self.replicas:
                    self.powerless.add(process.name)
                    self.forgotten |= self.began.keys()
            process.node = Node(process.name)

    def _loses_power(self, process: Process) -> bool:
        """Whether the machine lost its power; not if others run on it."""
        alone = process in self.replicas or not self.plan.shared_folder or len(self.gateways) == 1
        return alone and self.chance.random() < self.plan.power

    async def _replica(self, process: Process) -> None:
        def opened(made: Replica) -> None:
            process.replica = made
            assert isinstance(made.loop, SimulatedEngineLoop)
            made.loop.hear = self.hear

        address = f"unix:/{process.name}"
        await serve_replica(process.name, address, process.folder, self.model, self.script, opened)

    async def _serve(self, process: Process) -> None:
        database = await self._at.database.open(self.path)
        epoch = f"{process.name}-{process.starts}"
        bus = SimulatedBus(self._at.bus)
        process.folder.mkdir(exist_ok=True)
        app, gateway = make_gateway(process.name, epoch, process.folder, database, bus, self.model, self._addresses)
        over = asyncio.Event()
        gateway.on_over = over.set
        await gateway.start()
        process.app, process.gateway = app, gateway
        await over.wait()
        process.app = None
        await gateway.stop()

    def _ready(self, process: Process) -> bool:
        gateway = process.gateway
        return process.node.alive and gateway is not None and bool(gateway.services.fleet.healthy(self.model.name))

    def hear(self, events: Iterable[object]) -> None:
        """Check what an engine says at the end of a step, before anybody else hears it."""
        for event in events:
            if isinstance(event, Began):
                self.began.setdefault(event.id, [])
            if isinstance(event, Done) and event.reason not in ("rejected", "crash"):
                counts = event.counts
                if counts.prompt != counts.computed + counts.read or counts.output > self.sampled[event.id]:
                    self.broken_rules.append(f"E2: {event}, {self.sampled[event.id]} tokens were sampled")

    def note_sampled(self, request: Request, prompt: Sequence[int]) -> None:
        """A replica computed a token of this request."""
        self.began[request.id] = list(prompt)
        self.sampled[request.id] += 1

    @property
    def keeps_keys(self) -> bool:
        """Whether an idempotency key stands for one request: that of a gateway which dies, or has no database for long,
        is run anew (docs/idempotency.md)."""
        return all(process.starts == 1 for process in self.gateways) and not self.plan.outages

    def reads(self, prompt: list[int], text: str) -> bool:
        """Whether this prompt has the text."""
        return text in self.model.tokenizer.decode(prompt)

    def expected_text(self, request: UUID | None, tokens: int) -> str:
        """What so many tokens of the answer to this request read like; nothing of one that no replica computed."""
        prompt = self.began.get(str(request), [])
        return self.script.text(prompt, tokens) if prompt else ""

    # ------------------------------------------------ clients

    async def _client(self, number: int) -> None:
        chance = random.Random(self.chance.getrandbits(64))
        account = self.accounts[number % len(self.accounts)]
        for asked in range(self.plan.requests):
            await asyncio.sleep(chance.expovariate(1.5))
            prompt = (
                f"Client {number % 3}: " + "the quick brown fox jumps. " * chance.choice((1, 1, 12)) + str(asked % 2)
            )
            key = f"key-{number}-{asked}" if chance.random() < self.plan.keyed else ""
            most, streamed = chance.choice((1, 5, 30, 60)), chance.random() < 0.7
            for _ in range(3 if key else 1):
                twins = 2 if key and chance.random() < 0.3 else 1
                asks = [
                    Seen(f"{prompt} {key}.", most, streamed, number % len(self.accounts), key=key) for _ in range(twins)
                ]
                self.seen += asks
                await asyncio.gather(*(self._ask(chance, seen, account) for seen in asks))
                if all(seen.ended == "whole" for seen in asks):
                    break
                await asyncio.sleep(chance.uniform(0.1, 2.0))

    async def _ask(self, chance: random.Random, seen: Seen, account: Account) -> None:
        patience = chance.expovariate(1 / self.plan.patience) if chance.random() < 0.3 else 90.0
        for _ in range(20):
            running = [process for process in self.gateways if process.app is not None and process.node.alive]
            if running:
                process = chance.choice(running)
                assert process.app is not None
                await Client(chance, seen, account.api_key).ask(process.app, process.node, patience)
                return
            await asyncio.sleep(0.5)
        seen.ended, seen.error = "failed", "no gateway"

    # ------------------------------------------------ faults

    async def _let_faults_happen(self) -> None:
        plan, chance = self.plan, self.chance
        happen = [
            *[self._kill] * plan.kills,
            *[self._part] * plan.partitions,
            *[self._fill_disk] * plan.full_disks,
            *[self._break_disk] * plan.broken_disks,
            *[self._stop_database] * plan.outages,
            *[self._stop_bus] * plan.bus_outages,
            *[self._jump] * plan.jumps,
        ]
        chance.shuffle(happen)
        moments = sorted(chance.uniform(0.0, plan.seconds) for _ in happen)
        before = 0.0
        for fault, moment in zip(happen, moments, strict=True):
            await asyncio.sleep(moment - before)
            before = moment
            await fault()

    def _note(self, fault: str) -> None:
        self.faults.append(f"{self._at.loop.time():.3f} {fault}")
        self._at.loop.note(fault)

    async def _kill(self) -> None:
        process = self.chance.choice([*self.replicas, *self.gateways])
        node = process.node
        if self.chance.random() < 0.5:
            node.dies_at_step = node.steps + self.chance.randint(1, 300)
            self._note(f"kill {process.name} in step {node.dies_at_step}")
        else:
            node.dies_at_write = node.file_operations + self.chance.randint(1, 12)
            self._note(f"kill {process.name} in file operation {node.dies_at_write}")

    def _stepped(self, node: Node) -> None:
        if node.dies_at_step is not None and node.steps >= node.dies_at_step:
            node.die()

    async def _part(self) -> None:
        one, other = self.chance.choice(self.gateways).name, self.chance.choice(self.replicas).name
        self._note(f"part {one} from {other}")
        self._at.network.part(one, other)
        await asyncio.sleep(self.chance.choice((0.3, 3.0, 9.0)))
        self._at.network.heal()

    async def _fill_disk(self) -> None:
        name = self.chance.choice([*self.gateways, *self.replicas]).name
        self._note(f"no room on the disk of {name}")
        self._at.disk.full.add(name)
        await asyncio.sleep(self.chance.uniform(0.5, 6.0))
        self._at.disk.full.discard(name)

    async def _break_disk(self) -> None:
        name = self.chance.choice([*self.gateways, *self.replicas]).name
        self._note(f"syncs fail on the disk of {name}")
        self._at.disk.broken.add(name)
        await asyncio.sleep(self.chance.uniform(0.01, 1.0))
        self._at.disk.broken.discard(name)

    async def _stop_database(self) -> None:
        self._note("the database does not answer")
        self._at.database.away = True
        await asyncio.sleep(self.chance.choice((0.5, 4.0, 9.0)))
        self._at.database.away = False

    async def _stop_bus(self) -> None:
        self._note("the bus is down")
        self._at.bus.down = True
        await asyncio.sleep(self.chance.uniform(0.5, 4.0))
        self._at.bus.restore()

    async def _jump(self) -> None:
        process = self.chance.choice([*self.replicas, *self.gateways])
        jump = self.chance.choice((-5.0, -1.0, 1.0, 5.0))
        self._note(f"the clock of {process.name} jumps by {jump} s")
        process.node.skew_ns += round(jump * 1e9)

    def _let_all_be_well(self) -> None:
        at = self._at
        self.calm = True
        self._note("all is well again")
        at.network.heal()
        at.disk.full.clear()
        at.disk.broken.clear()
        at.database.away, at.database.conflicts, at.database.unacknowledged, at.database.broken = False, 0.0, 0.0, 0.0
        at.bus.down = False
        for process in (*self.replicas, *self.gateways):
            if process.node.alive:
                process.node.dies_at_step = process.node.dies_at_write = None

    # ------------------------------------------------ the end

    async def _come_to_rest(self) -> None:
        """Wait until nothing is left to be settled: nothing runs, nothing waits in a spool or a journal, and no hold of
        a gateway that is gone is open."""
        database = await self._at.database.open(self.path)
        end = self._at.loop.time() + _REST_S
        while not (self._at_rest() and await self._holds_ended(database)) and self._at.loop.time() < end:
            await asyncio.sleep(0.5)
        await database.close()

    async def _holds_ended(self, database: Database) -> bool:
        living = [process.gateway.services.spool.owner for process in self.gateways if process.gateway is not None]
        async with database.reading() as session:
            # all tenants: the world is theirs
            query = select(func.count()).select_from(hold_batch).where(hold_batch.c.gateway.not_in(living))
            return (await session.execute(query)).scalar_one() == 0

    def _at_rest(self) -> bool:
        for process in self.gateways:
            gateway = process.gateway
            if gateway is None or not process.node.alive or len(gateway.requests) or not gateway.services.spool.drained:
                return False
        return all(
            process.replica is not None
            and not process.replica._running
            and not process.replica.journal.unacknowledged()
            for process in self.replicas
        )

    async def _until(self, condition: Any, seconds: float) -> None:
        end = self._at.loop.time() + seconds
        while not condition() and self._at.loop.time() < end:
            await asyncio.sleep(0.25)


def _why(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "" if error is None else f"{type(error).__name__}: {error}"


def prepare_folder(root: Path, template: Path) -> None:
    """Give a world its folder and its database."""
    root.mkdir(parents=True)
    shutil.copyfile(template, root / "world.db")


def install() -> None:
    """Put the stand-ins in place."""
    replica.install()


__all__ = ["Plan", "Surroundings", "World", "install", "prepare_folder", "stock"]
