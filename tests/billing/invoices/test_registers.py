"""VIES and the European Central Bank behind their ports: down, invalid, changed; and the same over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import msgspec
import pytest

from billing.invoices.advances import top_ups
from billing.invoices.credit_notes import credit
from billing.invoices.document import LocalTax
from billing.invoices.errors import NoProfile
from billing.invoices.registers.exchange_rates import (
    InvalidRates,
    PublishedRates,
    RatesChanged,
    record_rates,
)
from billing.invoices.registers.vat_checks import RegisterUnavailable, VatAnswer, check_vat_id, read_vat_checks
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.billing.invoices.documents import BUYER
from turnpike.processes.registers import EuropeanCentralBank, Vies, ask

FORTY = Usage(uncached=100_000_000)
FRENCH_VAT = msgspec.structs.replace(USD, rates={"DE": 1900, "FR": 2000})


class ScriptedRegister:
    """Answers as it is told, one answer a question; None: it is down."""

    name = "a script"

    def __init__(self, *answers: VatAnswer | PublishedRates | None) -> None:
        self._answers = list(answers)

    def _next(self) -> VatAnswer | PublishedRates:
        answer = self._answers.pop(0)
        if answer is None:
            raise RegisterUnavailable("it is down")
        return answer

    async def look_up(self, vat_id: str) -> VatAnswer:
        answer = self._next()
        assert isinstance(answer, VatAnswer)
        return answer

    async def latest(self) -> PublishedRates:
        answer = self._next()
        assert isinstance(answer, PublishedRates)
        return answer


async def test_answers_are_recorded_and_an_invalid_id_counts_as_none_from_then_on(database: Database) -> None:
    customer = await Customer.make(database, seller=FRENCH_VAT)
    register = ScriptedRegister(
        VatAnswer(True, "Client SAS", "Paris", "WAP1"), None, VatAnswer(True, "Autre SAS", "Lyon"), VatAnswer(False)
    )
    told = []
    for day in ("2026-09-20", "2026-10-02", "2026-10-10", "2026-11-05"):
        set_clock(database, day)
        check = await check_vat_id(database, register, customer.id)
        assert check is not None
        told.append((check.answer, check.changed))
    assert told == [("valid", False), ("unavailable", False), ("valid", True), ("invalid", True)]
    async with database.reading() as session:
        checks = await read_vat_checks(session, customer.id)
    assert [(check.answer, check.name) for check in checks] == [
        ("valid", "Client SAS"), ("unavailable", ""), ("valid", "Autre SAS"), ("invalid", ""),
    ]  # fmt: skip
    await customer.use("2026-10-03", FORTY)
    assert (await customer.invoice("2026-10")).tax == 0
    await customer.use("2026-11-03", FORTY)
    assert (await customer.invoice("2026-11")).tax == 800
    assert await audit_money(database) == []


async def test_there_is_nothing_to_ask_without_an_id(database: Database) -> None:
    customer = await Customer.make(database, buyer=msgspec.structs.replace(BUYER, country="US", vat_id=""))
    assert await check_vat_id(database, ScriptedRegister(), customer.id) is None
    with pytest.raises(NoProfile):
        await check_vat_id(database, ScriptedRegister(), new_id())


async def test_vat_is_stated_in_the_sellers_currency_too(database: Database) -> None:
    customer = await Customer.make(
        database,
        seller=msgspec.structs.replace(USD, prepayment="advance"),
        buyer=msgspec.structs.replace(BUYER, country="DE", vat_id=""),
    )
    source = ScriptedRegister(
        PublishedRates("2026-09-18", {"USD": "1.25", "JPY": "160"}),
        PublishedRates("2026-10-30", {"USD": "1.1"}),
    )
    assert await record_rates(database, source) == 2
    set_clock(database, "2026-09-20")
    await top_ups(database).grant(customer.id, 10 * 10**12, "USD")
    (advance,) = [one for one in await customer.invoices.list(customer.id) if one.kind == "advance"]
    stated = (await customer.invoices.document(advance)).local_tax
    assert stated == LocalTax(currency="EUR", tax=152, rate="0.8", day="2026-09-18", source="a script")
    await customer.use("2026-10-03", FORTY)
    assert await record_rates(database, source) == 1
    sent = await customer.invoice("2026-10")
    local = (await customer.invoices.document(sent)).local_tax
    assert isinstance(local, LocalTax)
    assert (local.tax, local.day) == (691, "2026-10-30")  # 7.60 / 1.1
    _, note = await credit(database, sent, "half", request="1", amounts={1: 2000})
    assert isinstance(note.local_tax, LocalTax)
    assert note.local_tax.tax == 346
    assert await audit_money(database) == []


async def test_without_a_rate_of_the_days_before_none_is_stated(database: Database) -> None:
    customer = await Customer.make(database, buyer=msgspec.structs.replace(BUYER, country="DE", vat_id=""))
    await record_rates(database, ScriptedRegister(PublishedRates("2026-10-20", {"USD": "1.25"})))
    await customer.use("2026-10-03", FORTY)
    assert (await customer.invoices.document(await customer.invoice("2026-10"))).local_tax is msgspec.UNSET


async def test_rates_that_are_down_invalid_or_changed(database: Database) -> None:
    with pytest.raises(RegisterUnavailable):
        await record_rates(database, ScriptedRegister(None))
    for bad in (
        PublishedRates("yesterday", {}),
        PublishedRates("2026-10-20", {"USD": "NaN"}),
        PublishedRates("2026-10-20", {"USD": "-1"}),
        PublishedRates("2026-10-20", {"usd": "1"}),
        PublishedRates("2026-10-20", {"USD": "1" * 31}),
    ):
        with pytest.raises(InvalidRates):
            await record_rates(database, ScriptedRegister(bad))
    first = PublishedRates("2026-10-20", {"USD": "1.25"})
    assert await record_rates(database, ScriptedRegister(first)) == 1
    assert await record_rates(database, ScriptedRegister(PublishedRates("2026-10-20", {"USD": "1.250"}))) == 0
    with pytest.raises(RatesChanged, match=r"1\.26 USD of 2026-10-20, 1\.25 was recorded"):
        await record_rates(database, ScriptedRegister(PublishedRates("2026-10-20", {"USD": "1.26"})))
    assert await audit_money(database) == []


def _answering(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


async def test_vies_over_http() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        asked = msgspec.json.decode(request.content)
        if asked["countryCode"] == "DE":
            return httpx.Response(200, json={"actionSucceed": False, "errorWrappers": [{"error": "MS_UNAVAILABLE"}]})
        if asked["countryCode"] == "IT":
            return httpx.Response(500)
        return httpx.Response(200, json={"valid": True, "name": "Client SAS", "address": "---"})

    async with _answering(answer) as client:
        vies = Vies(client, "https://vies.example/rest-api/")
        assert await vies.look_up("FR40303265045") == VatAnswer(True, "Client SAS")
        for down in ("DE136695976", "IT00743110157"):
            with pytest.raises(RegisterUnavailable):
                await vies.look_up(down)


RATES = """KEY,FREQ,CURRENCY,CURRENCY_DENOM,EXR_TYPE,EXR_SUFFIX,TIME_PERIOD,OBS_VALUE
EXR.D.USD.EUR.SP00.A,D,USD,EUR,SP00,A,2026-10-30,1.1
EXR.D.GBP.EUR.SP00.A,D,GBP,EUR,SP00,A,2026-10-30,0.87
EXR.D.BGN.EUR.SP00.A,D,BGN,EUR,SP00,A,2025-12-31,1.9558
"""


async def test_the_bank_over_http() -> None:
    answers = [RATES, "<html>", "CURRENCY,TIME_PERIOD,OBS_VALUE\nUSD,,\n", "x" * (1024 * 1024 + 1), ""]

    async with _answering(lambda _: httpx.Response(200, text=answers.pop(0))) as client:
        bank = EuropeanCentralBank(client, "https://ecb.example")
        assert await bank.latest() == PublishedRates("2026-10-30", {"USD": "1.1", "GBP": "0.87"})
        while answers:
            with pytest.raises(RegisterUnavailable):
                await bank.latest()


async def test_the_worker_asks_about_each_buyer_and_again_when_the_answer_is_old(database: Database) -> None:
    customer = await Customer.make(database)
    asked: list[str] = []
    down = True

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "ecb.example":
            return httpx.Response(200, text=RATES)
        return httpx.Response(503) if down else httpx.Response(200, json={"valid": True, "name": "Client SAS"})

    async with _answering(answer) as client:

        async def run() -> list[str]:
            asked.clear()
            assert not await ask(database, client, vies_url="https://vies.example", ecb_url="https://ecb.example")
            return list(asked)

        assert not await ask(database, client, vies_url="", ecb_url="")
        assert asked == []
        both = ["ecb.example", "vies.example"]
        assert await run() == both
        down = False
        assert await run() == both, "it was down before"
        assert await run() == ["ecb.example"], "there is an answer"
        set_clock(database, "2026-11-20")
        assert await run() == both, "it is old"
    async with database.reading() as session:
        answers = [check.answer for check in await read_vat_checks(session, customer.id)]
    assert answers == ["unavailable", "valid", "valid"]
    assert await audit_money(database) == []
