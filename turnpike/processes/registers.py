"""Registers over HTTP: VIES and the European Central Bank, behind the ports of `billing.invoices.registers`.

Each request is bounded in time and size, and follows no redirect.
"""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Any

import httpx
import msgspec
import structlog

from billing.invoices.registers.exchange_rates import InvalidRates, PublishedRates, RatesChanged, record_rates
from billing.invoices.registers.vat_checks import RegisterUnavailable, VatAnswer, check_vat_id, tenants_to_check
from storage.database.database import Database

TIMEOUT_S = 20
MAX_ANSWER = 1024 * 1024
"""Bytes of an answer that are read at most."""
_RATES = "service/data/EXR/D..EUR.SP00.A?lastNObservations=1&detail=dataonly&format=csvdata"


_VALID_US = 30 * 86_400_000_000
"""How long an answer about a VAT id counts until it is asked for again, in microseconds."""
_AT_ONCE = 20
logger = structlog.get_logger()


async def ask(database: Database, client: httpx.AsyncClient, *, vies_url: str, ecb_url: str) -> bool:
    """Record the last exchange rates and what VIES says of some VAT ids; whether more are to be looked up. Where a URL
    is empty, nobody is asked. What goes wrong is logged: the next run asks again."""
    if ecb_url:
        try:
            if new := await record_rates(database, EuropeanCentralBank(client, ecb_url)):
                logger.info("exchange rates are recorded", rates=new)
        except (RegisterUnavailable, InvalidRates, RatesChanged) as error:
            logger.warning("exchange rates were not recorded", error=str(error))
    if not vies_url:
        return False
    tenants = await tenants_to_check(database, await database.now() - _VALID_US, _AT_ONCE)
    for tenant_id in tenants:
        check = await check_vat_id(database, Vies(client, vies_url), tenant_id)
        if check is not None and check.answer == "unavailable":
            logger.warning("VIES does not answer", tenant=str(tenant_id))
            return False
        if check is not None and (check.changed or check.answer == "invalid"):
            logger.warning("a VAT id is not what it was", tenant=str(tenant_id), answer=check.answer)
    return len(tenants) == _AT_ONCE


class _Found(msgspec.Struct, rename="camel"):
    valid: bool
    name: str | None = ""
    address: str | None = ""
    request_identifier: str | None = ""


class Vies:
    """Asks VIES at `url`, such as https://ec.europa.eu/taxation_customs/vies/rest-api."""

    name = "VIES"

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url.rstrip("/")

    async def look_up(self, vat_id: str) -> VatAnswer:
        """What it says of the id. Raises RegisterUnavailable: also where a member state does not answer."""
        asked = {"countryCode": vat_id[:2], "vatNumber": vat_id[2:]}
        body = await fetch(self._client, "POST", f"{self._url}/check-vat-number", asked)
        try:
            found = msgspec.json.decode(body, type=_Found)
        except msgspec.MsgspecError as error:
            raise RegisterUnavailable(f"{self.name} did not answer the question") from error
        said = (found.name, found.address, found.request_identifier)
        return VatAnswer(found.valid, *("" if text in (None, "---") else str(text) for text in said))


class EuropeanCentralBank:
    """Reads the rates of the last day at `url`, such as https://data-api.ecb.europa.eu."""

    name = "ECB"

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url.rstrip("/")

    async def latest(self) -> PublishedRates:
        """The rates of the last day on which any was published: currencies that ended earlier are left out. Raises
        RegisterUnavailable."""
        body = await fetch(self._client, "GET", f"{self._url}/{_RATES}")
        try:
            rows = list(csv.DictReader(io.StringIO(body.decode(), newline=""), strict=True))
            rates = [(row["TIME_PERIOD"], row["CURRENCY"], row["OBS_VALUE"]) for row in rows]
        except (UnicodeDecodeError, csv.Error, KeyError) as error:
            raise RegisterUnavailable(f"{self.name} did not answer with rates") from error
        if not rates or not all(all(rate) for rate in rates):
            raise RegisterUnavailable(f"{self.name} did not answer with rates")
        day = max(rate[0] for rate in rates)
        return PublishedRates(day, {currency: value for of_day, currency, value in rates if of_day == day})


async def fetch(client: httpx.AsyncClient, method: str, url: str, body: Any = None) -> bytes:
    """The body of a successful answer. Raises RegisterUnavailable."""
    try:
        async with asyncio.timeout(TIMEOUT_S), client.stream(method, url, json=body) as answer:
            if answer.status_code != 200:
                raise RegisterUnavailable(f"{answer.url.host} answered with status {answer.status_code}")
            chunks, size = [], 0
            async for chunk in answer.aiter_bytes():
                size += len(chunk)
                if size > MAX_ANSWER:
                    raise RegisterUnavailable(f"{answer.url.host} answered with more than {MAX_ANSWER} bytes")
                chunks.append(chunk)
            return b"".join(chunks)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
        raise RegisterUnavailable(f"no answer from {url.partition('?')[0]}: {type(error).__name__}") from error
