"""Runs requests of the past as a gateway does: parsed, rendered, tokenized, planned, held with their leases, metered,
settled, and noted in the history of the cache. Only the engine is missing (`turnpike.demonstration.replica`).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from billing.holds.records import Hold
from billing.reservation.allowances import Allowances
from billing.reservation.hooked_holds import HookedHolds
from billing.settlement.settlement import settle
from billing.spool.spool import Spool
from billing.usage import Status, UsageEvent
from gateway.admission.admission import Admission
from gateway.admission.cache_leases import LeaseHook, LeaseRequest
from gateway.admission.fair_threads import FairThreads
from gateway.admission.lease_confirmations import LeaseConfirmations
from gateway.admission.prepared_request import Payer, PreparedRequest
from gateway.admission.request_timeouts import RequestTimeouts
from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request
from gateway.errors import GatewayError, ModelNotFound, Unaffordable
from gateway.fleet.fleet import Fleet
from gateway.generation.request_history import RequestHistory
from gateway.metering.billable_usage import Fault, FinishedRequest, event_of
from gateway.served_models.registry import ModelRegistry
from gateway.served_models.served_model import load_served_model
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.lease_decisions import written_tokens
from prompt_cache.promise.lease_store import LeaseStore
from prompt_cache.promise.scope_keys import ScopeKeys
from protocol.requests import Miss
from storage.database.base import new_id
from turnpike.admin_services import AdminServices
from turnpike.demonstration.cast import LARGE, OWN, SMALL
from turnpike.demonstration.replica import RememberingReplica
from turnpike.demonstration.times import row_of
from turnpike.demonstration.traffic import Ask, Ending
from turnpike.settings.data_folder import read_secrets
from waterfall.refused_requests import RefusedRequest, RefusedRequestStore
from waterfall.store import WaterfallStore

GATEWAY = "demonstration"
_CONTEXT = 131_072
"""Tokens of context of the models that only the past had."""
_ENDINGS: Mapping[Ending, tuple[Status, str, Fault]] = {
    "stop": ("ok", "stop", "none"),
    "length": ("ok", "length", "none"),
    "left": ("cancelled", "abort", "client"),
    "failed": ("failed", "crash", "ours_before"),
}
"""Status, reason, and whose fault it was."""
_SETTLED_TOGETHER = 24
"""So many requests are settled in one transaction, as a settler does that has fallen behind."""
_BEGAN_S = 0.15
"""From a request's admission until others can read what it computed."""

_MISNAMED = 40
"""Of so many requests one is sent first with a model's name that is none, as programs do whose settings are old."""
_ROUTES = {"anthropic": "POST /v1/messages", "openai": "POST /v1/chat/completions"}

PayerName: TypeAlias = tuple[str, str, str]
"""The names of a customer, its project and a key of that."""


class Done(Struct, frozen=True):
    """How many requests ran, and how many there was too little money for."""

    ran: int = 0
    refused: int = 0

    def __add__(self, other: Done) -> Done:
        return Done(self.ran + other.ran, self.refused + other.refused)


class _Run(Struct, frozen=True):
    """A request that ended."""

    prepared: PreparedRequest
    hold: Hold
    misses: tuple[Miss, ...]
    event: UsageEvent


class PastRequests:
    """Runs requests at the instant at which the process stands."""

    def __init__(
        self,
        admin: AdminServices,
        admission: Admission,
        leased: HookedHolds[LeaseRequest],
        domains: CacheDomains,
        *,
        models: ModelRegistry,
        timed_from: int,
    ) -> None:
        self._admin = admin
        self._waterfalls, self._timed_from = WaterfallStore(admin.database, 0), timed_from
        self._admission = admission
        self._domains = domains
        self._models = models
        self._leases = LeaseStore(admin.database)
        self._confirmations = LeaseConfirmations(self._leases, leased)
        self._history = RequestHistory(admin.database, domains, admin.prices, gather_s=0.0)
        self._ended: list[_Run] = []
        self._refusals, self._refused = RefusedRequestStore(admin.database, 0), list[RefusedRequest]()
        self._asked = 0
        self._replicas = {model.name: RememberingReplica(f"{model.name}-0") for model in models}

    async def run(self, payers: Mapping[PayerName, Payer], asks: Sequence[Ask]) -> Done:
        """Run these requests, all admitted at this instant."""
        for ask in asks:
            self._asked += 1
            if self._asked % _MISNAMED == 0:
                self._misname(payers, ask)
        answers = await asyncio.gather(*(self._one(payers, ask) for ask in asks))
        runs = [run for run in answers if run is not None]
        await self._tell_leases(runs)
        self._ended += runs
        if len(self._ended) >= _SETTLED_TOGETHER:
            await self.record()
        return Done(len(runs), len(answers) - len(runs))

    def forget(self, at: int) -> None:
        """Let replicas let go of what they had long before this instant."""
        for replica in self._replicas.values():
            replica.forget(at)

    async def close(self) -> None:
        """Write what waits."""
        await self.record()
        await self._history.stop()
        await self._confirmations.close()

    async def _one(self, payers: Mapping[PayerName, Payer], ask: Ask) -> _Run | None:
        program = ask.program
        payer, model = payers[program.customer, program.project, program.key], self._models.get(program.model)
        await self._domains.prepare(payer.tenant_id, payer.project_id)
        parse = messages_request.parse if program.dialect == "anthropic" else chat_request.parse
        generation = replace(parse(ask.body).generation, tag=program.tag)
        try:
            prepared = await self._admission.prepare(new_id(), payer, model, generation)
            prepared, hold = await self._admission.reserve(prepared, lambda: None)
        except Unaffordable as error:
            self._refuse(payer, ask, error)
            return None
        status, reason, fault = _ENDINGS[ask.ending]
        if LeaseConfirmations.needed(prepared):
            prepared, hold = await self._confirmations.confirm(prepared, hold, None if fault != "ours_before" else 0)
        assert prepared.keys is not None
        replica, tokens = self._replicas[model.name], len(prepared.prompt.tokens)
        counts, misses = replica.run(payer.project_id, prepared.keys, tokens, ask.output, hold.admitted_at)
        record = FinishedRequest(
            status=status,
            reason=reason,
            fault=fault,
            delivered=0 if fault == "ours_before" else ask.output // 3 if fault == "client" else ask.output,
            delivery="confirmed",
            source="gateway",
            replica=replica.name,
            model_digest=model.text_digest,
            sequence=replica.sequence,
            attempt=1,
        )
        event = event_of(hold, prepared.terms, prepared.price, counts, record)
        finished = hold.admitted_at + ask.milliseconds * 1000
        return _Run(prepared, hold, misses, replace(event, finished_at=finished))

    def _misname(self, payers: Mapping[PayerName, Payer], ask: Ask) -> None:
        """Send a request with a model's name that is none."""
        try:
            self._models.get(f"{ask.program.model}-preview")
        except ModelNotFound as error:
            self._refuse(payers[ask.program.customer, ask.program.project, ask.program.key], ask, error)

    def _refuse(self, payer: Payer, ask: Ask, error: GatewayError) -> None:
        """Note a request that is answered with this error."""
        if ask.at < self._timed_from:
            return
        self._refused.append(
            RefusedRequest(
                tenant_id=payer.tenant_id,
                request_id=new_id(),
                project_id=payer.project_id,
                at=ask.at,
                key=payer.key,
                route=_ROUTES[ask.program.dialect],
                status=error.status,
                code=error.code or "error",
                message=error.message,
            )
        )

    async def _tell_leases(self, runs: Sequence[_Run]) -> None:
        """Tell the leases how the requests ended that wrote them."""
        writers = {
            run.event.id: written_tokens(run.prepared.terms.leases, run.event.usage.prompt)
            for run in runs
            if run.prepared.leases is not None
        }
        if writers:
            await self._leases.settle_writes(writers)

    async def record(self) -> None:
        """Settle what has ended, and note it for the history."""
        runs, self._ended = self._ended, []
        settled = await settle(self._admin.database, self._admin.prices, [run.event for run in runs])
        if settled.refused:
            raise RuntimeError(f"{settled.refused} events of a demonstration were refused")
        for run in runs:
            observed = self._history.observed(run.prepared, run.hold, run.event, run.misses, _BEGAN_S)
            if observed is not None:
                self._history.note(observed)
        await self._history.written()
        timed = [row_of(run.prepared, run.event) for run in runs if run.event.admitted_at >= self._timed_from]
        if timed:
            await self._waterfalls.write(timed)
        refused, self._refused = self._refused, []
        if refused:
            await self._refusals.write(refused)


@asynccontextmanager
async def open_past_requests(admin: AdminServices, timed_from: int) -> AsyncIterator[PastRequests]:
    """What runs requests on this database, until the end. `timed_from`: those from this instant on have waterfalls."""
    settings = admin.settings
    secrets = read_secrets(settings)
    served = load_served_model(settings.model_folders[0])
    others = [replace(served, name=name, context_tokens=_CONTEXT) for name in (LARGE, SMALL) if name != served.name]
    models = ModelRegistry([replace(served, name=OWN), *others])
    domains = CacheDomains(secrets.scope_secret, ScopeKeys(admin.database, secrets.master_key))
    leased = HookedHolds(admin.holds, LeaseHook(LeaseStore(admin.database)))
    threads = FairThreads()
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), GATEWAY)
        admission = Admission(
            GATEWAY,
            fleet=Fleet((), gateway=GATEWAY, link_key=secrets.link_key, models=models),
            prices=admin.prices,
            holds=admin.holds,
            allowances=Allowances(admin.holds, spool, GATEWAY, busy=0),
            leased=leased,
            domains=domains,
            timeouts=RequestTimeouts(),
            threads=threads,
            database_timeout=30.0,
        )
        requests = PastRequests(admin, admission, leased, domains, models=models, timed_from=timed_from)
        try:
            yield requests
        finally:
            await requests.close()
            await leased.close()
            threads.close()
            await spool.close()
