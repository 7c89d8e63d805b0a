"""Runs requests as a gateway would, in a time of its own: real parsers, templates, plans, leases and history; the
replica's KV is a model of a few lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from billing.holds.records import Hold
from billing.prices import PriceVersion
from billing.usage import METERS
from gateway.admission.cache_leases import LeasePayer, lease_request
from gateway.admission.cache_plans import cache_plan
from gateway.admission.prepared_request import Payer, PreparedRequest
from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request
from gateway.generation.request_history import Observed
from gateway.http.cache_control import apply_cache_control, parse_cache_control
from gateway.metering.billable_usage import FinishedRequest, MeteringTerms, event_of
from gateway.served_models.served_model import ServedModel
from prompt_cache.history.diagnosis import Diagnosis, diagnose
from prompt_cache.history.records import RequestRecord
from prompt_cache.history.resemblance import Noted
from prompt_cache.history.store import History
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.lease_store import LeaseStore
from prompt_cache.promise.prefix_keys import PromptKeys
from protocol.requests import Counts, Sampling
from storage.database.base import new_id
from storage.database.database import Database
from tests.prompt_cache.history.mutations import Case, Step

SECOND = 1_000_000
MICRO = dict.fromkeys(METERS, 400000) | {meter: 40_000 for meter in METERS if meter.startswith("read")}
MICRO |= {
    "write_5m": 500_000,
    "write_30m": 600_000,
    "write_1h": 800_000,
    "write_12h": 1_200_000,
    "write_24h": 1_600_000,
}
PRICE = PriceVersion(1, "m", "USD", {(meter, "*", 0): micro for meter, micro in MICRO.items()})
DOMAINS = CacheDomains(b"s" * 32)


class Cached:
    """A prompt's KV at a replica."""

    def __init__(self, place: tuple[Any, ...], tokens: list[int], visible_at: int) -> None:
        self.place, self.tokens, self.visible_at = place, tokens, visible_at


class CacheWorld:
    """One project's requests. `models`: by the names that steps use."""

    def __init__(self, database: Database, models: Mapping[str, ServedModel], start: int) -> None:
        self.history = History(database)
        self.pending: list[Noted] = []
        """What was noted and is not written."""
        self._database, self._models, self._start = database, models, start
        self._leases = LeaseStore(database, counted_again_s=-1.0)
        self._payer = Payer(new_id(), new_id(), new_id(), "project", "key")
        self._cached: list[Cached] = []

    async def run(self, case: Case) -> tuple[RequestRecord, Diagnosis]:
        """Run a case; what is found out about its last request."""
        for step in case.steps:
            found = await self.request(step, case.dialect)
        return found

    async def request(self, step: Step, dialect: str) -> tuple[RequestRecord, Diagnosis]:
        """Run one request, and keep it."""
        if step.evicted:
            self._cached.clear()
        observed = await self._observed(step, dialect)
        noted = observed.noted
        evidence, noted.known = await self.history.evidence(noted, self.pending, observed.keys)
        noted.diagnosis = diagnose(noted.record, evidence)
        await self.history.write([noted])
        if step.purge:
            await self._leases.purge(self._payer.project_id)
        return noted.record, noted.diagnosis

    async def _observed(self, step: Step, dialect: str) -> Observed:
        model, payer = self._models[step.model], self._payer
        parse = chat_request.parse if dialect == "openai" else messages_request.parse
        control = parse_cache_control((step.control,) if step.control else ())
        generation = apply_cache_control(control, parse(json.dumps(step.body).encode()).generation)
        prompt = (
            model.prompt(generation.turns, generation.tools) if generation.tools else model.prompt(generation.turns)
        )
        tokens, at = len(prompt.tokens), self._start + int(step.at * SECOND)
        plan = cache_plan(generation, prompt, model)
        partition = generation.cache.partition
        root = DOMAINS.project(payer.tenant_id, payer.project_id).root
        keys = PromptKeys(model.name, model.text_digest, [(tokens, root)], prompt.tokens, partition=partition)
        request_id = new_id()
        prepared = PreparedRequest(
            request_id=request_id,
            payer=payer,
            generation=generation,
            model=model,
            prompt=prompt,
            plan=plan,
            sampling=Sampling(5),
            price=PRICE,
            terms=MeteringTerms(generation.surface, plan.read_min, tokens),
            conversation=b"",
            keys=keys,
            held_output=5,
        )
        self._leases._most_tokens = step.limit
        lease_payer = LeasePayer(request_id, payer.tenant_id, payer.project_id, "standard")
        asked = lease_request(lease_payer, plan, keys, prepared.terms, PRICE)
        async with self._database.transaction() as session:
            decider = await self._leases.decider(session, at, [asked.wish])
            decision = decider.decide(asked.wish)
            decider.take(asked.wish, decision)
            await self._leases.save(session, decider)
        prepared = replace(prepared, terms=replace(prepared.terms, leases=decision.parts), leases=decision)
        began = 10**6 if step.slow else 0.01
        read = self._found((step.replica, step.model, partition), prompt.tokens, at, plan.read)
        if plan.store != "none":
            place = (step.replica, step.model, partition)
            self._cached.append(Cached(place, prompt.tokens, at + int(began * SECOND)))
        counts = Counts(prompt=tokens, computed=tokens - read, read_hbm=read, output=1)
        hold = _hold(request_id, payer, at)
        ended = FinishedRequest(
            status="ok",
            reason="length",
            fault="none",
            delivered=1,
            delivery="confirmed",
            source="gateway",
            replica=step.replica,
            model_digest="d",
            sequence=1,
            attempt=1,
        )
        event = event_of(hold, prepared.terms, PRICE, counts, ended)
        return Observed(prepared, hold, event, misses=(), began_s=began, root=root)

    def _found(self, place: tuple[Any, ...], tokens: list[int], at: int, read: str) -> int:
        if read == "none":
            return 0
        there = [one.tokens for one in self._cached if one.place == place and one.visible_at <= at]
        return max((_shared(tokens, one) for one in there), default=0)


def _shared(tokens: list[int], other: list[int]) -> int:
    common = next(
        (i for i, (a, b) in enumerate(zip(tokens, other, strict=False)) if a != b), min(len(tokens), len(other))
    )
    return min(common, len(tokens) - 1) // 64 * 64


def _hold(request_id: UUID, payer: Payer, at: int) -> Hold:
    ids = (request_id, payer.tenant_id, payer.project_id, payer.key_id)
    return Hold(*ids, "m", "standard", 1, 10**12, "g", b"", at, "2026-11", at + 10**9)


class Models:
    """The demo model, a template with tools, and what may change: the model's name, or its template."""

    def __init__(self, folder: Path, demo: ServedModel, tooled: ServedModel) -> None:
        self._folder, self._demo, self._tooled = folder, demo, tooled

    @cached_property
    def all(self) -> dict[str, ServedModel]:
        return {
            "plain": self._demo,
            "tools": self._tooled,
            "other": replace(self._demo, name="another"),
            "template": replace(self._tooled, name=self._demo.name),
        }
