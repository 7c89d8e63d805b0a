"""The records of holds: the request for one, what it is reserved from, and the reservation as the database has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import UUID

import msgspec

from billing.calendar import period_of
from billing.money import MAX_PICO, InvalidMoney

_NOBODY = UUID(int=0)
HoldState = Literal["open", "released", "expired"]
"""A hold that was settled is gone: its usage event says all that it said."""


class HoldSources(msgspec.Struct, frozen=True):
    """What a hold's amount is reserved from beside the balance.

    `windows`: budget windows; the whole amount is reserved from each. `grants`: grants for one model or project, each
    with the pico-units that are reserved from it instead of the balance.
    """

    windows: tuple[UUID, ...] = ()
    grants: Mapping[UUID, int] = {}

    @property
    def granted_pico(self) -> int:
        """How much of the amount is reserved from grants."""
        return sum(self.grants.values())

    def encode(self) -> str:
        """As the rows of holds store it: `WINDOW,WINDOW,GRANT=PICO,…`, ids in hexadecimal; "" for no sources."""
        grants = (f"{grant.hex}={pico}" for grant, pico in self.grants.items())
        return ",".join([*(window.hex for window in self.windows), *grants])

    @staticmethod
    def decode(text: str) -> HoldSources:
        """The inverse of `encode`. Raises ValueError."""
        if not text:
            return NO_SOURCES
        items = [item.partition("=") for item in text.split(",")]
        return HoldSources(
            tuple([UUID(id) for id, equals, _ in items if not equals]),
            {UUID(id): int(pico) for id, equals, pico in items if equals},
        )


NO_SOURCES = HoldSources()
"""Those of a hold that is reserved from the balance alone."""


class HoldRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Reserve `amount_pico` for a request, for at most `lifetime_s`. Raises InvalidMoney.

    `gateway_epoch` is the run of the gateway worker that runs the request, `tag` what the client calls it for budgets.
    `terms` is for the gateway alone: what it needs to make usage of a journal's counts later. Fields are only added at
    the end, with a default: open holds outlive an upgrade. An allowance (`billing.reservation.allowances`) is for no
    model.
    """

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    lane: str
    price_version: int
    amount_pico: int
    lifetime_s: int
    gateway_epoch: str
    terms: bytes
    tag: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.amount_pico <= MAX_PICO:
            raise InvalidMoney(f"a hold of {self.amount_pico} pico-units")
        if self.lifetime_s <= 0:
            raise InvalidMoney(f"a hold for {self.lifetime_s} seconds")

    @classmethod
    def for_many(
        cls, identity: UUID, tenant_id: UUID, amount_pico: int, lifetime_s: int, gateway_epoch: str
    ) -> HoldRequest:
        """For an allowance of this id."""
        return cls(identity, tenant_id, _NOBODY, _NOBODY, "", "", 0, amount_pico, lifetime_s, gateway_epoch, b"")

    @property
    def is_allowance(self) -> bool:
        """Whether it is for many requests, which take from it until it is ended."""
        return not self.model


class TopUp(msgspec.Struct, frozen=True):
    """Raise the hold of a request that runs until it is `amount_pico` in all, so that a repetition changes nothing.
    Raises InvalidMoney."""

    request_id: UUID
    amount_pico: int
    batch: UUID | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.amount_pico <= MAX_PICO:
            raise InvalidMoney(f"a hold of {self.amount_pico} pico-units")


class Hold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reservation as the database has it. Its billing period was fixed by the database's clock at admission.

    One that was taken out of an `allowance` has no row of its own: whoever runs the request carries it (`claim`).
    """

    request_id: UUID
    tenant_id: UUID
    project_id: UUID
    key_id: UUID
    model: str
    lane: str
    price_version: int
    amount_pico: int
    gateway_epoch: str
    terms: bytes
    admitted_at: int
    period: str
    expires_at: int
    state: HoldState = "open"
    budgets: tuple[UUID, ...] = ()
    grants: Mapping[UUID, int] = {}
    """These two are its `sources`: apart, since claims that are out there have them so."""
    batch: UUID | None = None
    """Where an open hold is kept (`billing.holds.batches`). Without it, it is found by its id, which takes longer."""
    allowance: UUID | None = None

    @classmethod
    def of(
        cls,
        request: HoldRequest,
        admitted_at: int,
        amount_pico: int | None = None,
        state: HoldState = "open",
        *,
        sources: HoldSources = NO_SOURCES,
        batch: UUID | None = None,
        allowance: UUID | None = None,
    ) -> Hold:
        """The hold that a request gets at this instant; of another amount, if it was raised since."""
        return cls(
            request_id=request.request_id,
            tenant_id=request.tenant_id,
            project_id=request.project_id,
            key_id=request.key_id,
            model=request.model,
            lane=request.lane,
            price_version=request.price_version,
            amount_pico=request.amount_pico if amount_pico is None else amount_pico,
            gateway_epoch=request.gateway_epoch,
            terms=request.terms,
            admitted_at=admitted_at,
            period=period_of(admitted_at),
            expires_at=admitted_at + request.lifetime_s * 1_000_000,
            state=state,
            budgets=sources.windows,
            grants=sources.grants,
            batch=batch,
            allowance=allowance,
        )

    @property
    def sources(self) -> HoldSources:
        """What it is reserved from beside the balance."""
        return HoldSources(self.budgets, self.grants)

    @property
    def claim(self) -> bytes:
        """All of it, for who is to bill the request if we cannot; nothing if a row says it."""
        return _encoder.encode(self) if self.allowance is not None else b""

    @staticmethod
    def claimed(claim: bytes) -> Hold:
        """The hold whose `claim` this is. Raises msgspec.MsgspecError."""
        return _hold_decoder.decode(claim)


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(HoldRequest)
_hold_decoder = msgspec.msgpack.Decoder(Hold)
_list_decoder = msgspec.msgpack.Decoder(list[HoldRequest])
pack = _encoder.encode
"""A request as the row of its ended hold keeps it: whatever no statement asks for is in there."""
unpack = _decoder.decode
"""The inverse of `pack`. Raises msgspec.MsgspecError."""


def pack_all(requests: Sequence[HoldRequest]) -> bytes:
    """Requests as the row of their open holds keeps them."""
    return _encoder.encode(requests)


def unpack_all(packed: bytes) -> list[HoldRequest]:
    """The inverse of `pack_all`. Raises msgspec.MsgspecError."""
    return _list_decoder.decode(packed)
