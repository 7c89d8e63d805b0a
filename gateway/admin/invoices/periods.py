"""/admin/v1/periods: billing periods, what those that have ended wait for, and closing them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from billing.calendar import format_instant
from billing.periods.periods import Period, Periods, PeriodState, Waiting
from billing.spool.gateway_epochs import Epoch, declare_dead
from gateway.admin.access import principal_of
from gateway.admin.refusals import refusals
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.http.operations import describes, page
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
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
    starts_at: str
    ends_at: str
    closed_at: str | None
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
    started_at: str
    seen_at: str
    watermark: str
    reason: str


_CLOSING, _DEAD = msgspec.json.Decoder(Closing), msgspec.json.Decoder(DeadEpoch)
_EXAMPLE = {"period": "2026-11"}


def period_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    database, client_timeout = gateway.services.database, gateway.services.options.client_timeout
    periods = Periods(database, LeaseStorage(database))

    async def shown(request: Request[Any, Any, Any], period: Period) -> PeriodObject:
        on_platform = principal_of(request).may("periods.read")
        waiting = await periods.waiting(period.period) if on_platform and period.state == "closing" else None
        return _object(period, waiting)

    @get("/admin/v1/periods", opt=demands("periods.read") | describes(PeriodList, query=page()))
    async def list_periods(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The billing periods, the latest first."""
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        found = [one for one in reversed(await periods.list()) if after is None or one.period < after]
        listed = [await shown(request, period) for period in found[:limit]]
        return json_response(PeriodList(data=listed, has_more=len(found) > limit))

    @get("/admin/v1/periods/{period:str}", opt=demands("periods.read") | describes(PeriodObject, path=_EXAMPLE))
    async def retrieve_period(request: Request[Any, Any, Any], period: FromPath[str]) -> Response[bytes]:
        """One period; one that nothing was used in yet is open."""
        with refusals():
            return json_response(await shown(request, await periods.get(period)))

    @post(
        "/admin/v1/periods/{period:str}/close",
        status_code=200,
        opt=demands("periods.write")
        | describes(PeriodObject, body=Closing(), body_required=False, path=_EXAMPLE, errors={"period_open": 409}),
    )
    async def close_period(request: Request[Any, Any, Any], period: FromPath[str]) -> Response[bytes]:
        """Close a period that has ended and waits for nothing, for good. The worker does so by itself."""
        body = await read_management_body(request, client_timeout, _CLOSING, default=b"{}")
        with refusals():
            closed = await periods.close(period, dry_run=body.dry_run)
        return json_response(_object(closed, None))

    @post(
        "/admin/v1/gateway-epochs/{epoch:str}/declare-dead",
        status_code=200,
        opt=demands("periods.write")
        | describes(
            EpochObject,
            body=DeadEpoch(reason="the disk is lost"),
            path={"epoch": "gateway-1-18a6b2f3c4d5e6f7"},
            errors={"epoch_alive": 409},
        ),
    )
    async def declare_epoch_dead(request: Request[Any, Any, Any], epoch: FromPath[str]) -> Response[bytes]:
        """Let no period wait for a gateway epoch that is lost together with its spool."""
        body = await read_management_body(request, client_timeout, _DEAD)
        with refusals():
            dead = await declare_dead(database, epoch, body.reason, gateway.services.spool.folder)
        return json_response(_epoch(dead))

    return [list_periods, retrieve_period, close_period, declare_epoch_dead]


def _object(period: Period, waiting: Waiting | None) -> PeriodObject:
    return PeriodObject(
        period=period.period,
        state=period.state,
        starts_at=format_instant(period.starts_at),
        ends_at=format_instant(period.ends_at),
        closed_at=None if period.closed_at is None else format_instant(period.closed_at),
        root=None if period.root is None else period.root.hex(),
        waits_for=[] if waiting is None else waiting.reasons(),
    )


def _epoch(epoch: Epoch) -> EpochObject:
    same: dict[str, Any] = {name: getattr(epoch, name) for name in ("epoch", "gateway", "state", "reason")}
    instants = {name: format_instant(getattr(epoch, name)) for name in ("started_at", "seen_at", "watermark")}
    return EpochObject(**same | instants)
