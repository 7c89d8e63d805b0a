"""Prepares parsed requests (prompt, cache plan, limits, price) and reserves their money.

How many requests may wait in a lane is limited by the replica, which knows its queue
(`engine/scheduling/fairness/queue_limits.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar
from uuid import UUID

import structlog
from msgspec.structs import replace

from billing.accounts.balances import CurrencyMismatch
from billing.holds.records import Hold, HoldRequest
from billing.money import InvalidMoney
from billing.prices import PriceCatalog, PriceMissing
from billing.reservation.allowances import Allowances
from billing.reservation.decisions import InsufficientFunds
from billing.reservation.hold_service import HoldService
from billing.reservation.hooked_holds import HookedHolds
from gateway.adapters.adapted_models import AdaptedModels, price_of
from gateway.admission.affordability import affordable_tokens, cost_bound, unaffordable
from gateway.admission.cache_leases import (
    LeasePayer,
    LeaseRequest,
    lease_request,
    needs_leases,
)
from gateway.admission.cache_plans import cache_plan
from gateway.admission.fair_threads import FairThreads
from gateway.admission.prepared_request import Payer, PreparedRequest
from gateway.admission.request_size import conversation_size, request_memory, tools_size
from gateway.admission.request_timeouts import RequestTimeouts
from gateway.admission.sampling_params import context_exceeded, max_output_tokens, sampling_params
from gateway.admission.tool_choice import apply_tool_choice
from gateway.conversation.chat_template import ConversationRefused
from gateway.conversation.prompt import Prompt, PromptTooLong, Span
from gateway.errors import InvalidField, InvalidRequest, Unaffordable, Unavailable
from gateway.fleet.conversation_key import RAW_KEY_TOKENS, conversation_key, names_of_prompt
from gateway.fleet.fleet import Fleet
from gateway.generation_request import CacheDirectives, GenerationRequest
from gateway.metering.billable_usage import MeteringTerms, pack, unpack
from gateway.served_models.served_model import ServedModel
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.directives import CachePlan
from prompt_cache.promise.prefix_keys import PromptKeys
from protocol.requests import CLAIM_VERSION, MOST_PREDICTION_TOKENS
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import DatabaseUnavailable
from waterfall.marks import PLAN, PRICE, RENDER, Marks

Result = TypeVar("Result")
CountBytes: TypeAlias = Callable[[int], None]
"""Is told how many bytes a request becomes in memory, and may refuse it."""

log = structlog.get_logger("gateway.admission")

_CLAMPS = 3
"""How often a request without `max_tokens` is shortened, should other requests spend the money at the same time."""
_MANY_PIECES = 1000
"""The cache plan of a prompt with more texts and markers is made in a thread."""
_THREAD_CHARACTERS = 16_384
"""Larger conversations are tokenized in a thread: this many take 2 to 4 ms, for which everybody's requests wait."""
_LEFT_OUT_BYTES = 1024 * 1024
"""Texts of this size and more are looked through for those that the template left out."""
_CHARACTERS_A_TOKEN = 4
"""Of ordinary text; more characters of a prediction are not looked at."""
_THREAD_TOKENS = 16_384
"""The prefix keys of longer prompts are made in a thread too."""


def uncounted(size: int) -> None:
    """Nobody counts bytes."""


class Admission:
    """Prepares requests and reserves their money, for one gateway worker."""

    def __init__(
        self,
        gateway_epoch: str,
        *,
        fleet: Fleet,
        prices: PriceCatalog,
        holds: HoldService,
        allowances: Allowances,
        leased: HookedHolds[LeaseRequest],
        domains: CacheDomains,
        timeouts: RequestTimeouts,
        threads: FairThreads,
        database_timeout: float,
        slice_tokens: int = 0,
        models: AdaptedModels | None = None,
    ) -> None:
        """`gateway_epoch`: this worker's. `leased` takes the holds of requests that leases have a say in.
        `database_timeout`: seconds that a request waits for the database. `slice_tokens`: hold the output's money in
        slices of so many tokens of each choice; 0: all at once."""
        self.timeouts = timeouts
        self._models = models
        self.slice_tokens = slice_tokens
        self._gateway_epoch = gateway_epoch
        self._fleet = fleet
        self._prices = prices
        self._holds = holds
        self._allowances = allowances
        self._leased = leased
        self._domains = domains
        self._threads = threads
        self._for_prices, self._for_holds = CircuitBreaker(database_timeout), CircuitBreaker(database_timeout)

    async def prepare(
        self,
        request_id: UUID,
        payer: Payer,
        model: ServedModel,
        generation: GenerationRequest,
        count: CountBytes = uncounted,
    ) -> PreparedRequest:
        """Render, tokenize, plan, check. Raises InvalidRequest, NotAllowed, RateLimited, Unavailable, and what `count`
        raises."""
        marks = Marks()
        payer.check(model.name, generation.lane)
        if self._models is not None:
            model = await self._models.adapted_in_time(
                payer.tenant_id, payer.project_id, model, generation.model, self._for_prices
            )
        apply = partial(apply_tool_choice, model, generation)
        generation = await self._run(payer.tenant_id, apply, large=tools_size(generation) > _THREAD_CHARACTERS)
        prompt = await self.prompt(payer.tenant_id, model, generation, count)
        prompt_tokens = len(prompt.tokens)
        marks.mark(RENDER)
        reasoning = model.reasoning(generation, prompt.tokens)
        max_output = max_output_tokens(generation, prompt_tokens, self.context_tokens(model), reasoning)
        cache = await self._plan(payer.tenant_id, model, generation, prompt)
        prediction = await self._prediction(payer.tenant_id, model, generation)
        marks.mark(PLAN)
        try:
            price = await price_of(self._prices, payer.tenant_id, model, self._for_prices)
        except PriceMissing as error:
            raise Unavailable(f"The model {model.name!r} has no price at present.", retry_after=60.0) from error
        except DatabaseUnavailable as error:
            problem = "The database is away, so the price is not known; try again shortly."
            raise Unavailable(problem, retry_after=2.0) from error
        marks.mark(PRICE)
        partition = generation.cache.partition
        name = partial(names_of_prompt, payer.project_id, partition, model.full_name, prompt.tokens)
        sampling = sampling_params(generation, model, max_output)
        shares = cache.read != "none" and cache.store != "none" and sampling.prompt_logprobs is None
        names = await self._run(payer.tenant_id, name, large=prompt_tokens > _THREAD_TOKENS) if shares else b""
        return PreparedRequest(
            request_id=request_id,
            payer=payer,
            generation=_with_rendered_texts(generation, prompt),
            model=model,
            prompt=prompt,
            plan=cache,
            sampling=sampling,
            price=price,
            terms=MeteringTerms(generation.surface, cache.read_min, prompt_tokens),
            conversation=conversation_key(payer.project_id, partition, prompt.tokens, _beginning(generation, prompt)),
            prefixes=names,
            keys=self._keys(payer, model, generation, prompt),
            held_output=self._first_slice(max_output, generation.min_tokens),
            reasoning=reasoning,
            prediction=prediction,
            marks=marks,
        )

    async def prompt(
        self, tenant: UUID, model: ServedModel, generation: GenerationRequest, count: CountBytes = uncounted
    ) -> Prompt:
        """Render and tokenize alone. Raises InvalidRequest, RateLimited, and what `count` raises."""
        count(request_memory(generation))
        try:
            return await self._prompt(tenant, model, generation)
        except PromptTooLong as error:
            context_tokens = self.context_tokens(model)
            raise context_exceeded(generation, error.tokens, context_tokens, is_lower_bound=True) from error

    def context_tokens(self, model: ServedModel) -> int:
        """The context that a request may fill: the model's, or what its replicas have memory for."""
        return min(model.context_tokens, self._fleet.context_tokens(model.name) or model.context_tokens)

    def check(self) -> None:
        """Raise Unavailable while reservations wait for a database that does not answer."""
        try:
            self._for_holds.check()
        except DatabaseUnavailable as error:
            raise database_unavailable() from error

    def enter(self) -> None:
        """As `check`, for a request that goes on to `reserve`: one of them finds out whether the database answers."""
        try:
            self._for_holds.enter()
        except DatabaseUnavailable as error:
            raise database_unavailable() from error

    async def reserve(self, prepared: PreparedRequest, overdue: Callable[[], None]) -> tuple[PreparedRequest, Hold]:
        """Hold the upper bound of the cost, or that of the first slice; returns the request and its hold.

        A request without `max_tokens` is `shortened` to what can be paid for. `overdue` is called when the database has
        taken longer than a client waits; the reservation goes on, so that the caller learns what came of it. Raises
        Unaffordable, Unavailable.
        """
        try:
            with self._for_holds.waiting(overdue):
                return await self._reserve(prepared)
        except DatabaseUnavailable as error:
            raise database_unavailable() from error

    async def until_database_answers(self, pause: float = 1.0) -> None:
        """Wait until the database answers, and for a pause after that."""
        while True:
            await asyncio.sleep(pause)
            try:
                await self._holds.ping()
            except DatabaseUnavailable:
                continue
            await asyncio.sleep(pause)
            return

    async def _reserve(self, prepared: PreparedRequest) -> tuple[PreparedRequest, Hold]:
        for _ in range(_CLAMPS):
            try:
                return await self._hold(prepared)
            except InsufficientFunds as error:
                fits = affordable_tokens(error, prepared)
                open_ended = prepared.generation.max_tokens is None
                if not open_ended or fits < max(1, prepared.generation.min_tokens):
                    raise unaffordable(error, prepared, fits) from error
                sampling = replace(prepared.sampling, max_tokens=fits)
                prepared = replace(prepared, sampling=sampling, held_output=fits, shortened=True)
        try:
            return await self._hold(prepared)
        except InsufficientFunds as error:  # other requests spent the money meanwhile
            raise unaffordable(error, prepared, affordable_tokens(error, prepared)) from error

    async def top_up(self, prepared: PreparedRequest, hold: Hold, output: int) -> Hold:
        """Raise the hold of a running request until it covers `output` tokens of each choice. Raises as
        `HoldService.top_up`, and DatabaseUnavailable if the database is silent; it may still do it later."""
        amount = cost_bound(prepared, output)
        top_up = self._allowances.reserve_beside(hold.tenant_id, lambda: self._holds.top_up(hold, amount))
        return await self._for_holds.wait(top_up)

    def _keys(self, payer: Payer, model: ServedModel, generation: GenerationRequest, prompt: Prompt) -> PromptKeys:
        segments, scopes = self._domains.segments(payer.tenant_id, payer.project_id, len(prompt.tokens))
        roots = {scope.scope: scope.root for scope in scopes}
        return PromptKeys(
            *model.names,
            [(segment.until, roots[segment.scope]) for segment in segments],
            prompt.tokens,
            partition=generation.cache.partition,
        )

    def _first_slice(self, max_output: int, min_tokens: int) -> int:
        return min(max_output, max(self.slice_tokens, min_tokens)) if self.slice_tokens else max_output

    async def _hold(self, prepared: PreparedRequest) -> tuple[PreparedRequest, Hold]:
        payer, generation = prepared.payer, prepared.generation
        request = HoldRequest(
            request_id=prepared.request_id,
            tenant_id=payer.tenant_id,
            project_id=payer.project_id,
            key_id=payer.key_id,
            model=prepared.model.full_name,
            lane=generation.lane,
            price_version=prepared.price.id,
            amount_pico=cost_bound(prepared, prepared.held_output),
            lifetime_s=self.timeouts.hold,
            gateway_epoch=self._gateway_epoch,
            terms=pack(prepared.terms),
            tag=generation.tag,
        )
        # A hold that may be topped up, or that the replica's journal cannot give back, needs a row in the database. So
        # does one of a batch: who takes the batch over learns from the row whether a line still runs.
        whole = prepared.held_output == prepared.sampling.max_tokens and generation.lane != "batch"
        carried = whole and self._fleet.version(prepared.model.name) >= CLAIM_VERSION
        try:
            if needs_leases(prepared.plan):
                return await self._hold_with_leases(prepared, request)
            if carried:
                return prepared, await self._allowances.reserve(request)
            reserve = partial(self._holds.reserve, request)
            return prepared, await self._allowances.reserve_beside(payer.tenant_id, reserve)
        except (CurrencyMismatch, InvalidMoney) as error:
            raise Unaffordable(f"This request cannot be paid: {error}.") from error

    async def _hold_with_leases(self, prepared: PreparedRequest, request: HoldRequest) -> tuple[PreparedRequest, Hold]:
        """The hold, and the request with what the cache promises it. Raises NotCached too."""
        assert prepared.keys is not None
        payer, generation = prepared.payer, prepared.generation
        ask = partial(
            lease_request,
            LeasePayer(prepared.request_id, payer.tenant_id, payer.project_id, generation.lane),
            prepared.plan,
            prepared.keys,
            prepared.terms,
            prepared.price,
            tags=generation.cache.tags,
        )
        asked = await self._run(payer.tenant_id, ask, large=len(prepared.prompt.tokens) > _THREAD_TOKENS)
        hold = await self._allowances.reserve_beside(payer.tenant_id, lambda: self._leased.reserve(request, asked))
        return replace(prepared, terms=unpack(hold.terms), leases=asked.decision, lease_request=asked), hold

    async def _run(self, tenant: UUID, work: Callable[[], Result], *, large: bool) -> Result:
        """Do the work here, or in a thread if it is large."""
        return await self._threads.run(tenant, work) if large else work()

    async def _plan(self, tenant: UUID, model: ServedModel, generation: GenerationRequest, prompt: Prompt) -> CachePlan:
        pieces = len(prompt.spans) + len(generation.cache.markers)
        large = pieces > _MANY_PIECES and generation.cache != CacheDirectives()
        return await self._run(tenant, partial(cache_plan, generation, prompt, model), large=large)

    async def _prompt(self, tenant: UUID, model: ServedModel, generation: GenerationRequest) -> Prompt:
        if generation.prompt is not None:
            return await self._raw_prompt(tenant, model, generation, generation.prompt)
        messages = len(generation.turns)
        if messages > model.context_tokens:  # no template says a message in nothing; spare us rendering them
            raise PromptTooLong(messages)
        wish = generation.reasoning
        if wish.path is not None and model.template.reasons and not model.keeps_budgets:
            problem = f"the model {model.name} has no token that ends its reasoning"
            raise InvalidField(wish.path, problem, code="unsupported_parameter")
        render = partial(
            model.prompt, generation.turns, generation.tools, continued=generation.continued, reasoning=wish
        )
        try:
            return await self._run(tenant, render, large=conversation_size(generation) > _THREAD_CHARACTERS)
        except ConversationRefused as error:
            raise InvalidRequest(
                f"The messages do not fit this model: {error}", path=generation.turns_path, code="invalid_value"
            ) from error

    async def _prediction(self, tenant: UUID, model: ServedModel, generation: GenerationRequest) -> tuple[int, ...]:
        """The tokens of what the client expects the output to be; of a long text those of its beginning."""
        text = generation.prediction[: MOST_PREDICTION_TOKENS * _CHARACTERS_A_TOKEN]
        if not text:
            return ()
        work = partial(model.tokenizer.content, text)
        tokens = await self._run(tenant, work, large=len(text) > _THREAD_CHARACTERS)
        return tuple(tokens[:MOST_PREDICTION_TOKENS])

    async def _raw_prompt(
        self, tenant: UUID, model: ServedModel, generation: GenerationRequest, prompt: str | tuple[int, ...]
    ) -> Prompt:
        path = generation.turns_path
        if isinstance(prompt, str):
            work = partial(model.continued, prompt, path, opened=generation.add_special_tokens)
            tokenized = await self._run(tenant, work, large=len(prompt) > _THREAD_CHARACTERS)
        else:
            checked = prompt[: model.context_tokens]  # a longer prompt is refused for its length
            index = next((index for index, token in enumerate(checked) if token >= model.tokenizer.size), None)
            if index is not None:
                raise InvalidRequest(
                    f"{path}[{index}]: token id {prompt[index]} is outside the model's vocabulary of "
                    f"{model.tokenizer.size}.",
                    path=f"{path}[{index}]",
                    code="invalid_value",
                )
            tokenized = Prompt(list(prompt), (Span(path, 0, len(prompt)),))
        if not tokenized.tokens:
            raise InvalidRequest(f"{path} is empty.", path=path, code="invalid_value")
        return tokenized


def _with_rendered_texts(generation: GenerationRequest, prompt: Prompt) -> GenerationRequest:
    """The request without texts that the template left out, if they may be large: they would be held until it ends."""
    if request_memory(generation) <= _LEFT_OUT_BYTES:
        return generation
    paths = {span.path for span in prompt.spans}
    turns = (replace(turn, texts=tuple(text for text in turn.texts if text.path in paths)) for turn in generation.turns)
    return replace(generation, turns=tuple(turns))


def _beginning(generation: GenerationRequest, prompt: Prompt) -> int:
    """How many first tokens of the prompt stay as they are while the conversation grows: its first turns up to the
    first that a user wrote."""
    first = next((turn for turn in generation.turns if turn.role == "user" and turn.texts), None)
    path = None if first is None else first.texts[-1].path
    return next((span.end for span in prompt.spans if span.path == path), RAW_KEY_TOKENS)


def database_unavailable() -> Unavailable:
    """The error for a client whose money cannot be reserved."""
    return Unavailable("The database is away, so no money can be reserved; try again shortly.", retry_after=2.0)
