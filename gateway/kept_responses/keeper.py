"""Decides what is kept of a response, keeps it, and finds what a request goes on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gateway.admission.fair_threads import FairThreads
from gateway.admission.prepared_request import Payer
from gateway.dialects.large_bodies import LARGE_BYTES, MOST_PARTS
from gateway.dialects.openai.common_response import encoder
from gateway.dialects.openai.responses.input_items import MOST_REFERENCES, InputItem, json_size
from gateway.dialects.openai.responses.request import EARLIER, ResponsesRequest
from gateway.dialects.openai.responses.response_object import Response
from gateway.errors import InvalidField, NotFound
from gateway.kept_responses.earlier_items import KeptRequest, TooManyItems, items_of
from gateway.kept_responses.storage_bound import StorageBound
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from response_store.policies import ResponsePolicies
from response_store.records import GONE_ON_FROM, Kind, ListedResponse, NewResponse, StoredResponse
from response_store.store import MOST_CHAIN_BYTES, ChainBroken, ChainTooLong, ResponseStore, SealedResponses
from storage.database.circuit_breaker import CircuitBreaker
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("gateway.kept_responses")

PREFIX = "resp_"
_HEX = 32
_SHOWN = 80
Result = TypeVar("Result")


class Terms(Struct, frozen=True):
    """How a response is kept, and for how long."""

    kind: Kind
    lifetime_s: int


class ResponseKeeper:
    """The kept responses as one gateway worker uses them. `retention_s`: how long they are kept where a project says
    nothing else; 0: never. `store` is None where there are no keys to seal by: then nothing is kept."""

    def __init__(
        self,
        store: ResponseStore | None,
        policies: ResponsePolicies,
        breaker: CircuitBreaker,
        retention_s: int,
        threads: FairThreads,
    ) -> None:
        self.store = store
        self.policies = policies
        self._breaker = breaker
        self._retention_s = retention_s
        self._threads = threads
        self.bound = None if store is None else StorageBound(store)

    async def terms(self, payer: Payer, asked: ResponsesRequest) -> Terms | None:
        """How the response to a request is kept; None if it is not. Raises InvalidField, DatabaseUnavailable."""
        needed = bool(asked.store or asked.background)
        try:
            lifetime = 0 if asked.store is False else await self._breaker.wait(self._lifetime(payer))
        except DatabaseUnavailable:
            if needed:
                raise
            return None  # it is answered all the same
        if not lifetime:
            if asked.background:
                raise InvalidField(
                    "$.background",
                    "this project keeps no responses, and one in the background is fetched later",
                    code="unsupported_parameter",
                )
            return None
        if self.bound is not None and self.bound.full(payer.tenant_id, payer.project_id):
            if not needed:
                return None
            raise InvalidField(
                "$.background" if asked.background else "$.store",
                "this project keeps as many responses as it may; delete some, or let them expire",
                code="storage_exceeded",
            )
        if asked.background:
            return Terms("background", lifetime)
        return Terms("stored" if asked.store else "chain", lifetime)

    async def keeps(self, payer: Payer) -> bool:
        """Whether the project keeps answers, and may keep one more. Raises DatabaseUnavailable."""
        full = self.bound is not None and self.bound.full(payer.tenant_id, payer.project_id)
        return not full and bool(await self._breaker.wait(self._lifetime(payer)))

    async def keeps_content(self, payer: Payer) -> bool:
        """Whether the project lets anything of its content be kept. Raises DatabaseUnavailable."""
        return bool(await self._breaker.wait(self._lifetime(payer)))

    async def _lifetime(self, payer: Payer) -> int:
        """Seconds for which the project's responses are kept."""
        if self.store is None:
            return 0
        policy = await self.policies.get(payer.tenant_id, payer.project_id)
        lifetime = self._retention_s if policy.retention_s is None else policy.retention_s
        try:
            if lifetime and await self.store.keeps_nothing(payer.tenant_id, payer.project_id):
                return 0
        except ScopeKeyUnreadable as error:
            log.error("a project's responses are not kept", cause=str(error))
            return 0
        return lifetime

    async def save(self, payer: Payer, asked: ResponsesRequest, response: Response, terms: Terms) -> None:
        """Keep a response that has ended. Raises nothing: the client has paid for it, and gets it all the same."""
        assert self.store is not None, "it has terms"
        new = new_response(payer, response, encoder.encode(KeptRequest(asked.items)), terms)
        self.count(new.project_id, new.request, new.response)
        try:
            await self._breaker.wait(self.store.save(new))
        except (DatabaseUnavailable, ScopeKeyUnreadable) as error:
            log.warning("a response is not kept", response=response.id, cause=type(error).__name__)

    def count(self, project_id: UUID, *contents: bytes | None) -> None:
        """Count what is about to be kept against what its project may keep."""
        if self.bound is not None:
            self.bound.wrote(project_id, sum(len(content) for content in contents if content is not None))

    async def get(
        self, tenant_id: UUID, project_id: UUID, name: str, count: Callable[[int], None] = lambda _: None
    ) -> StoredResponse:
        """A project's response, whatever it was kept for. `count` is told its bytes before it is loaded. Raises
        NotFound, RateLimited, DatabaseUnavailable, and what `count` raises."""
        id_ = response_id_of(name)
        if self.store is not None and id_ is not None:
            count((await self.listed(tenant_id, project_id, name)).bytes)
            try:
                sealed = await self._breaker.wait(self.store.find(tenant_id, project_id, [id_]))
            except ScopeKeyUnreadable:
                sealed = SealedResponses()
            if found := await self._in_thread(tenant_id, sealed, sealed.open):
                return found[0]
        raise unknown(name)

    async def listed(self, tenant_id: UUID, project_id: UUID, name: str) -> ListedResponse:
        """The same without its content, for who asks again and again. Raises NotFound, DatabaseUnavailable."""
        id_ = response_id_of(name)
        if self.store is not None and id_ is not None:
            found = await self._breaker.wait(self.store.listed(tenant_id, project_id, id_))
            if found is not None:
                return found
        raise unknown(name)

    async def earlier(
        self, payer: Payer, asked: ResponsesRequest, count: Callable[[int], None]
    ) -> tuple[ResponsesRequest, list[InputItem]]:
        """The request with the items that it refers to, and the items of the responses that it goes on from. `count` is
        told of the bytes of these responses before they are read. Raises NotFound, InvalidField, RateLimited,
        DatabaseUnavailable, and what `count` raises."""
        items: list[InputItem] = []
        if asked.previous_response_id is not None:
            chain = await self._chain(payer, asked.previous_response_id, count)
            try:
                items = await self._items_of(payer, chain)
            except ChainBroken:
                raise _broken(asked.previous_response_id) from None
            except TooManyItems:
                raise InvalidField(EARLIER, f"its conversation has more than {MOST_PARTS} items and parts") from None
        if isinstance(asked.input, list) and any(item.type == "item_reference" for item in asked.input):
            asked = replace(asked, input=await self._referred(payer, asked.input, count))
        return asked, items

    async def _chain(self, payer: Payer, name: str, count: Callable[[int], None]) -> SealedResponses:
        id_, chain = response_id_of(name), SealedResponses()
        if self.store is not None and id_ is not None:
            try:
                chain = await self._breaker.wait(self.store.chain(payer.tenant_id, payer.project_id, id_, count))
            except ChainBroken:
                raise _broken(name) from None
            except ChainTooLong:
                raise InvalidField(EARLIER, "its conversation is too long to go on from") from None
            except ScopeKeyUnreadable:
                pass
        if not chain:
            raise NotFound(
                f"{EARLIER}: there is no response {name[:_SHOWN]!r} to go on from.",
                path=EARLIER,
                code="previous_response_not_found",
            )
        if chain.last_status not in GONE_ON_FROM:
            raise InvalidField(EARLIER, f"the response {name[:_SHOWN]!r} is {chain.last_status}, and not completed")
        return chain

    async def _referred(
        self, payer: Payer, items: Sequence[InputItem], count: Callable[[int], None]
    ) -> list[InputItem]:
        """The items, with those of earlier responses in place of references to them."""
        names = [item.id or "" for item in items if item.type == "item_reference"]
        if len(names) > MOST_REFERENCES:
            raise InvalidField("$.input", f"it refers to more than {MOST_REFERENCES} items of earlier responses")
        ids = {id_ for name in names if (id_ := _response_of_item(name)) is not None}
        by_id: dict[str, InputItem] = {}
        found = SealedResponses()
        if self.store is not None and ids:
            try:
                work = self.store.items_of(payer.tenant_id, payer.project_id, sorted(ids), count)
                found = await self._breaker.wait(work)
            except ChainTooLong:
                raise InvalidField("$.input", "the responses that it refers to are too long together") from None
            except ScopeKeyUnreadable:
                pass
            try:
                by_id = {item.id: item for item in await self._items_of(payer, found) if item.id}
            except TooManyItems:
                too_many = f"the responses that it refers to have more than {MOST_PARTS} items and parts"
                raise InvalidField("$.input", too_many) from None
        referred = [by_id[name] for name in names if name in by_id]
        if sum(map(json_size, referred)) > MOST_CHAIN_BYTES:  # one item may be referred to again and again
            raise InvalidField("$.input", "the items that it refers to are too long together")
        return [by_id.get(item.id or "", item) if item.type == "item_reference" else item for item in items]

    async def _items_of(self, payer: Payer, sealed: SealedResponses) -> list[InputItem]:
        """Their items. Raises ChainBroken, TooManyItems, RateLimited."""
        return await self._in_thread(payer.tenant_id, sealed, lambda: items_of(sealed.open()))

    async def _in_thread(self, tenant_id: UUID, sealed: SealedResponses, work: Callable[[], Result]) -> Result:
        """Do it in a thread if these responses, which it opens, are large. Waiting for a thread is no waiting for the
        database. Raises RateLimited."""
        return await self._threads.run(tenant_id, work) if sealed.size > LARGE_BYTES else work()


def new_response(
    payer: Payer, response: Response, request: bytes, terms: Terms, worker: str | None = None
) -> NewResponse:
    """What is kept of this response. `request`: the JSON of its request."""
    id_ = response_id_of(response.id)
    assert id_ is not None, "it is our own"
    previous = response.previous_response_id
    return NewResponse(
        id=id_,
        tenant_id=payer.tenant_id,
        project_id=payer.project_id,
        previous_id=None if previous is None else response_id_of(previous),
        kind=terms.kind,
        status=response.status,
        model=response.model,
        request=request,
        response=encoder.encode(response),
        lifetime_s=terms.lifetime_s,
        worker=worker,
    )


def response_id_of(name: str) -> UUID | None:
    """The id in a response's name; None if it is none."""
    text = name.removeprefix(PREFIX)
    if len(text) != _HEX or text == name:
        return None
    try:
        return UUID(text)
    except ValueError:
        return None


def _broken(name: str) -> NotFound:
    return NotFound(
        f"{EARLIER}: an earlier response of {name[:_SHOWN]!r} was deleted or has expired.",
        path=EARLIER,
        code="previous_response_not_found",
    )


def unknown(name: str) -> NotFound:
    """The error for a response that is not there, or not the project's."""
    return NotFound(f"There is no response {name[:_SHOWN]!r}.")


def _response_of_item(name: str) -> UUID | None:
    """The response that an item's name belongs to."""
    _, _, key = name.partition("_")
    return response_id_of(PREFIX + key[:_HEX])
