"""/admin/v1/periods: billing periods, what those that have ended wait for, and closing them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from billing.periods.periods import Period, Periods, PeriodState, Waiting
from billing.spool.gateway_epochs import declare_dead
from file_store.adapter_residency import AdapterResidency
from gateway.admin.operation import Call, operation
from gateway.http.policies import demands
from gateway.http.shapes import Instant, Page, PageQuery, show
from gateway.services import Gateway
from prompt_cache.promise.lease_storage import LeaseStorage


class Closing(Struct, frozen=True, forbid_unknown_fields=True):
    """`dry_run`: only check."""

    dry_run: bool = False


class DeadEpoch(Struct, frozen=True, forbid_unknown_fields=True):
    """What happened to the gateway and its spool; kept with the epoch."""

    reason: str


class PeriodObject(Struct, frozen=True, kw_only=True):
    """A billing period. `root`: the hash over all its chains of usage events, sealed when it closed. `waits_for`: what
    keeps it from closing, a line each, once it is over; for the platform only."""

    object: Literal["period"] = "period"
    period: str
    state: PeriodState
    starts_at: Instant
    ends_at: Instant
    closed_at: Instant | None
    root: str | None
    waits_for: list[str]


class PeriodList(Page[PeriodObject], frozen=True):
    """Periods, the latest first; `after` is the last one's month."""


class EpochObject(Struct, frozen=True, kw_only=True):
    """A run of a gateway, with the instant from which on it may have usage that is not settled."""

    object: Literal["gateway_epoch"] = "gateway_epoch"
    epoch: str
    gateway: str
    state: str
    started_at: Instant
    seen_at: Instant
    watermark: Instant
    reason: str


_EXAMPLE = {"period": "2026-11"}


class PeriodOperations:
    """Lists and closes billing periods, and declares gateway epochs dead."""

    def __init__(self, gateway: Gateway) -> None:
        database = self._database = gateway.services.database
        self._periods = Periods(database, LeaseStorage(database), AdapterResidency(database))
        self._spool = gateway.services.spool

    @operation("GET", "/admin/v1/periods", demands("periods.read"))
    async def list_periods(self, call: Call, page: PageQuery) -> PeriodList:
        """The billing periods, the latest first."""
        periods = [
            period
            for period in reversed(await self._periods.list())
            if page.after is None or period.period < page.after
        ]
        shown = [await self._shown(call, period) for period in periods[: page.limit]]
        return PeriodList(data=shown, has_more=len(periods) > page.limit)

    @operation("GET", "/admin/v1/periods/{period:str}", demands("periods.read"), path=_EXAMPLE)
    async def retrieve_period(self, call: Call, period: str) -> PeriodObject:
        """One period; one that nothing was used in yet is open."""
        return await self._shown(call, await self._periods.get(period))

    @operation(
        "POST",
        "/admin/v1/periods/{period:str}/close",
        demands("periods.write"),
        example=Closing(),
        body_required=False,
        path=_EXAMPLE,
        errors={"period_open": 409},
    )
    async def close_period(self, period: str, body: Closing) -> PeriodObject:
        """Close a period that has ended and waits for nothing, for good. The worker does so by itself."""
        return _object(await self._periods.close(period, dry_run=body.dry_run), None)

    @operation(
        "POST",
        "/admin/v1/gateway-epochs/{epoch:str}/declare-dead",
        demands("periods.write"),
        example=DeadEpoch(reason="the disk is lost"),
        path={"epoch": "gateway-1-18a6b2f3c4d5e6f7"},
        errors={"epoch_alive": 409},
    )
    async def declare_epoch_dead(self, epoch: str, body: DeadEpoch) -> EpochObject:
        """Let no period wait for a gateway epoch that is lost together with its spool."""
        return show(EpochObject, await declare_dead(self._database, epoch, body.reason, self._spool.folder))

    async def _shown(self, call: Call, period: Period) -> PeriodObject:
        on_platform = call.principal.may("periods.read")
        waiting = await self._periods.waiting(period.period) if on_platform and period.state == "closing" else None
        return _object(period, waiting)


def _object(period: Period, waiting: Waiting | None) -> PeriodObject:
    return show(
        PeriodObject,
        period,
        root=None if period.root is None else period.root.hex(),
        waits_for=[] if waiting is None else waiting.reasons(),
    )
