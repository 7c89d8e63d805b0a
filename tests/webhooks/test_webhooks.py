"""Webhooks end to end: signed, delivered at least once, retried, failed for good, resent, by several workers."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, literal, select, update
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from billing.accounts.budgets import BudgetSettings
from billing.prices import PriceCatalog
from billing.reservation.hold_service import HoldService
from billing.settlement.settlement import settle
from billing.transaction.budget_charges import name_budget_subjects
from billing.usage import Usage
from storage.database.base import Count, new_id
from storage.database.database import Database
from storage.database.outbox import outbox
from tests.billing.money import Tenant
from tests.waiting import until
from tests.webhooks.receiver import Received, Receiver, receiver, status
from turnpike.admin_services import webhook_topics
from webhooks import dispatch
from webhooks.addresses import AddressPolicy, parse_networks
from webhooks.dispatch import Dispatcher, delay_us
from webhooks.endpoints import (
    MAX_ENDPOINTS,
    MOST_TESTS,
    InvalidWebhook,
    WebhookEndpoints,
    WebhookNotFound,
    delivery_row,
    matches_any,
)
from webhooks.sending import WebhookSender
from webhooks.signing import SecretCipher, encode_secret, headers, new_secret
from webhooks.tables import webhook_delivery, webhook_endpoint

POLICY = AddressPolicy(allow_http=True, networks=parse_networks("127.0.0.1/32"))
WEBHOOK_TOPICS = webhook_topics()
CIPHER = SecretCipher(b"m" * 32)
PAYLOAD = {"subject": "", "spent": "12.50", "über": True}


async def _happen(database: Database, tenant: UUID, topic: str, count: int = 1) -> list[UUID]:
    rows = [
        {"id": new_id(), "tenant_id": tenant, "topic": topic, "payload": json.dumps(PAYLOAD), "created_at": 10**15}
        for _ in range(count)
    ]
    async with database.transaction() as session:
        await session.execute(insert(outbox), rows)
    return [UUID(str(row["id"])) for row in rows]


async def _hurry(database: Database) -> None:
    """Let what waits be due now."""
    async with database.transaction() as session:
        await session.execute(update(webhook_delivery).values(next_at=0, leased_until=0))


def _dispatcher(database: Database, **options: Any) -> Dispatcher:
    return Dispatcher(database, CIPHER, WebhookSender(POLICY, timeout_s=options.pop("timeout_s", 15)), **options)


def _verified(secret: str, message: Any) -> Any:
    return Webhook(secret).verify(message.body, message.headers)


def _url(right: Receiver, path: str = "/") -> str:
    return f"http://127.0.0.1:{right.port}{path}"


async def test_what_happens_is_told_to_who_wants_it(database: Database) -> None:
    endpoints, dispatcher, tenant, other = (
        WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS),
        _dispatcher(database),
        new_id(),
        new_id(),
    )
    async with receiver() as right:
        _, secret = await endpoints.add(tenant, _url(right, "/all"), ["*"])
        await endpoints.add(tenant, _url(right, "/invoices"), ["invoice.*"])
        _, strange = await endpoints.add(other, _url(right, "/other"), ["*"])
        (event,) = await _happen(database, tenant, "budget.threshold")
        assert await dispatcher.run()
        assert not await dispatcher.run()
        (message,) = right.received
        assert (message.path, message.headers["content-type"]) == ("/all", "application/json")
        assert message.headers["webhook-id"] == f"evt_{event.hex}"
        body = _verified(secret, message)
        assert (body["type"], body["data"]) == ("budget.threshold", PAYLOAD)
        assert body["timestamp"].startswith("2001-09-09T01:46:40")
        for wrong in (strange, encode_secret(b"x" * 32)):
            with pytest.raises(WebhookVerificationError):
                _verified(wrong, message)
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(message.body + b" ", message.headers)
        await _happen(database, tenant, "invoice.paid")
        await dispatcher.run()
        assert sorted(each.path for each in right.received) == ["/all", "/all", "/invoices"]
    newest = (await endpoints.deliveries(tenant))[0]
    assert (newest.state, newest.attempts, newest.status) == ("delivered", 1, 204)
    assert await endpoints.deliveries(other) == []
    with pytest.raises(WebhookNotFound):
        await endpoints.delivery(other, newest.id)


@pytest.mark.slow
async def test_a_budget_is_told_of_with_the_names_that_people_use(database: Database) -> None:
    tenant = await Tenant.rich(database, 10**9)
    endpoints, project, key = (
        WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS),
        str(tenant.project_id),
        str(tenant.key_id),
    )
    for scope, subject in (("tenant", ""), ("project", project), ("key", key)):
        await BudgetSettings(database).set(tenant.id, scope, subject, "day", limit_pico=400_000, currency="USD")  # type: ignore[arg-type]
    hold = await HoldService(database).reserve(tenant.request(400_000))
    await settle(database, PriceCatalog(database), [tenant.event(hold, Usage(uncached=1))])

    async def names(tenant_id: UUID) -> dict[str, tuple[str, str]]:
        assert tenant_id == tenant.id
        return {project: ("project_1", "research")}

    async with receiver() as right:
        await endpoints.add(tenant.id, _url(right), ["budget.*"])
        await _dispatcher(database, payloads=partial(name_budget_subjects, names_of=names)).run()
        told = {data["scope"]: data for data in (json.loads(each.body)["data"] for each in right.received)}
    assert {scope: (data["subject"], data["subject_name"]) for scope, data in told.items()} == {
        "tenant": ("", ""),
        "project": ("project_1", "research"),
        "key": (key, key),  # nobody knows it any more
    }
    budgets = {
        window.scope: f"budget_{window.budget_id.hex}" for window in await BudgetSettings(database).list(tenant.id)
    }
    assert {scope: data["budget"] for scope, data in told.items()} == budgets
    assert told["project"]["what"] == "the daily budget of the project research"
    assert told["tenant"]["what"] == "the daily budget of the tenant"


async def test_tried_again_until_it_is_taken_and_sent_again_when_asked(database: Database) -> None:
    endpoints, dispatcher, tenant = (
        WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS),
        _dispatcher(database),
        new_id(),
    )
    async with receiver() as right:
        answers = {1: status(500), 2: status(503, "retry-after: 3600"), 3: status(302, "location: http://10.0.0.1/")}
        right.answer = lambda number: answers.get(number, status(200))
        endpoint, secret = await endpoints.add(tenant, _url(right), ["*"])
        await _happen(database, tenant, "invoice.finalized")
        for attempt in range(1, 5):
            before = await database.now()
            database.clock = literal(before, Count())
            await dispatcher.run()
            assert not await dispatcher.run(), "not due yet"
            (delivery,) = await endpoints.deliveries(tenant, endpoint.id)
            assert (delivery.attempts, delivery.state) == (attempt, "delivered" if attempt == 4 else "pending")
            if attempt == 1:
                assert 2_000_000 < delivery.next_at - before < 9_000_000
            if attempt == 2:
                assert delivery.next_at - before > 3_590_000_000
            await _hurry(database)
        ids = {message.headers["webhook-id"] for message in right.received}
        assert (len(right.received), len(ids)) == (4, 1)
        delivery, attempts = await endpoints.delivery(tenant, delivery.id)
        assert [each.status for each in attempts] == [500, 503, 302, 200]
        assert "redirects" in attempts[2].error
        await endpoints.resend(tenant, delivery.id)
        await dispatcher.run()
        assert right.received[-1].headers["webhook-id"] == right.received[0].headers["webhook-id"]
        assert _verified(secret, right.received[-1])["type"] == "invoice.finalized"
        with pytest.raises(WebhookNotFound):
            await endpoints.resend(new_id(), delivery.id)


async def test_given_up_after_its_time_and_switched_off_when_gone(database: Database) -> None:
    endpoints, tenant = WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS), new_id()
    async with receiver() as right:
        right.answer = lambda _: status(500)
        endpoint, _ = await endpoints.add(tenant, _url(right), ["*"])
        await _happen(database, tenant, "invoice.paid")
        await _dispatcher(database, give_up_s=1).run()
        (delivery,) = await endpoints.deliveries(tenant)
        assert (delivery.state, delivery.error, delivery.attempts) == ("failed", "answered 500", 1)
        right.answer = lambda _: status(410)
        await _happen(database, tenant, "invoice.paid", count=6)
        dispatcher = _dispatcher(database)
        while await dispatcher.run():
            pass
        assert {each.state for each in await endpoints.deliveries(tenant)} == {"failed"}
        gone = await endpoints.get(tenant, endpoint.id)
        assert (gone.state, gone.reason) == ("disabled", "it answered 410 Gone")
        with pytest.raises(InvalidWebhook, match="disabled"):
            await endpoints.resend(tenant, delivery.id)
        seen = len(right.received)
        assert seen <= 5
        await _happen(database, tenant, "invoice.paid")
        assert not await dispatcher.run()
        assert (await endpoints.enable(tenant, endpoint.id)).state == "enabled"
        right.answer = lambda _: status(200)
        await endpoints.resend(tenant, delivery.id)
        await dispatcher.run()
        assert len(right.received) == seen + 1


async def test_a_secret_is_changed_with_an_overlap(database: Database) -> None:
    endpoints, dispatcher, tenant = (
        WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS),
        _dispatcher(database),
        new_id(),
    )
    async with receiver() as right:
        endpoint, old = await endpoints.add(tenant, _url(right), ["*"])
        new = await endpoints.rotate(tenant, endpoint.id)
        assert new != old
        await endpoints.send_test(tenant, endpoint.id)
        await dispatcher.run()
        for secret in (old, new):
            assert _verified(secret, right.received[-1])["type"] == "webhook.test"
        with pytest.raises(InvalidWebhook, match="overlap_s: the previous secret signs until"):
            await endpoints.rotate(tenant, endpoint.id)
        async with database.transaction() as session:
            await session.execute(update(webhook_endpoint).values(previous_until=1))
        await endpoints.send_test(tenant, endpoint.id)
        await dispatcher.run()
        _verified(new, right.received[-1])
        with pytest.raises(WebhookVerificationError):
            _verified(old, right.received[-1])
        await endpoints.rotate(tenant, endpoint.id)
        newest = await endpoints.rotate(tenant, endpoint.id, overlap_s=0)
        await endpoints.send_test(tenant, endpoint.id)
        await dispatcher.run()
        _verified(newest, right.received[-1])
        with pytest.raises(WebhookVerificationError):
            _verified(new, right.received[-1])


async def test_secrets_are_encrypted_and_destroyed_with_the_endpoint(database: Database) -> None:
    endpoints, tenant = WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS), new_id()
    async with receiver() as right:
        endpoint, secret = await endpoints.add(tenant, _url(right), ["*"])
        async with database.reading() as session:
            row = (await session.execute(select(webhook_endpoint))).one()
        import base64

        plain = base64.b64decode(secret.removeprefix("whsec_"))
        assert plain not in row.secret
        assert CIPHER.decrypt(row.secret, endpoint.id) == plain
        for sealer, identity in ((SecretCipher(b"n" * 32), endpoint.id), (CIPHER, new_id())):
            with pytest.raises(Exception):  # noqa: B017, PT011  # cryptography's InvalidTag has no message
                sealer.decrypt(row.secret, identity)
        await _happen(database, tenant, "invoice.paid")
        stranger = Dispatcher(database, SecretCipher(b"n" * 32), WebhookSender(POLICY))
        await stranger.run()
        (delivery,) = await endpoints.deliveries(tenant)
        assert (delivery.state, "master key" in delivery.error) == ("pending", True)
        await endpoints.remove(tenant, endpoint.id)
        await _hurry(database)
        assert not await _dispatcher(database).run()
        (delivery,) = await endpoints.deliveries(tenant)
        assert (delivery.state, delivery.error) == ("failed", "the endpoint was removed")
        async with database.reading() as session:
            assert (await session.execute(select(webhook_endpoint))).one().secret == b""
        assert await endpoints.list_all(tenant) == []
        for call in (endpoints.remove, endpoints.rotate, endpoints.send_test, endpoints.get, endpoints.enable):
            with pytest.raises(WebhookNotFound):
                await call(tenant, endpoint.id)
        assert right.received == []


@pytest.mark.slow
async def test_several_workers_tell_each_once(database: Database) -> None:
    endpoints, tenant = WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS), new_id()
    async with receiver() as right:
        await endpoints.add(tenant, _url(right, "/a"), ["*"])
        await endpoints.add(tenant, _url(right, "/b"), ["*"])
        events = await _happen(database, tenant, "invoice.paid", count=12)

        async def work() -> None:
            dispatcher = _dispatcher(database)
            for _ in range(40):
                if not await dispatcher.run():
                    await asyncio.sleep(0.005)

        await asyncio.gather(work(), work(), work())
        told = [(message.path, message.headers["webhook-id"]) for message in right.received]
        assert sorted(told) == sorted((path, f"evt_{event.hex}") for path in ("/a", "/b") for event in events)
        assert await _dispatcher(database).remove_old(86_400) == 0


async def test_what_a_dead_worker_took_is_told_by_another(database: Database) -> None:
    endpoints, tenant = WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS), new_id()
    async with receiver() as right:
        right.answer = lambda number: None if number == 1 else status(200)
        await endpoints.add(tenant, _url(right), ["*"])
        await _happen(database, tenant, "invoice.paid")
        dying = asyncio.create_task(_dispatcher(database).run())
        while not right.received:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        dying.cancel()
        await asyncio.wait([dying])
        other = _dispatcher(database)
        assert not await other.run(), "its lease still runs"
        await _hurry(database)
        await other.run()
        assert len(right.received) == 2
        (delivery,) = await endpoints.deliveries(tenant)
        assert (delivery.state, delivery.attempts) == ("delivered", 1)


async def test_slow_endpoints_hold_up_no_other(database: Database) -> None:
    endpoints, tenant, other = WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS), new_id(), new_id()
    async with receiver() as slow, receiver() as quick:
        slow.answer = lambda _: None
        for number in range(3):
            await endpoints.add(tenant, _url(slow, f"/{number}"), ["invoice.*"])
        await endpoints.add(tenant, _url(quick), ["budget.*"])
        await endpoints.add(other, _url(quick), ["*"])
        await _happen(database, tenant, "invoice.paid", count=10)
        await _happen(database, other, "invoice.paid", count=6)
        running = asyncio.create_task(_work(_dispatcher(database, timeout_s=3600)))
        try:
            await until(lambda: len(quick.received) == 6)
            await _happen(database, other, "invoice.paid", count=6)
            await until(lambda: len(quick.received) == 12)
            await until(lambda: len(slow.received) == 8)
            assert all(list(map(_path, slow.received)).count(f"/{number}") <= 4 for number in range(3))
        finally:
            running.cancel()
            await asyncio.wait([running])
        # Another worker gives no more places to who has all of them.
        assert not await _dispatcher(database).run()
        assert slow.connections == 8


async def _work(dispatcher: Dispatcher) -> None:
    while True:
        if not await dispatcher.run():
            await asyncio.sleep(0.005)


def _path(message: Received) -> str:
    return message.path


async def test_a_run_ends_and_the_next_goes_on_with_its_attempts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_LOOKS", 1)
    monkeypatch.setattr(dispatch, "_LOOK_S", 0.01)
    endpoints, tenant, dispatcher = (
        WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS),
        new_id(),
        _dispatcher(database, timeout_s=3600),
    )
    async with receiver() as right:
        right.answer = lambda _: None
        await endpoints.add(tenant, _url(right), ["*"])
        await _happen(database, tenant, "invoice.paid")
        while not right.received:
            assert await dispatcher.run()
        for handler in right.handlers:  # the connection ends without an answer
            handler.cancel()
        while await dispatcher.run():
            pass
        (delivery,) = await endpoints.deliveries(tenant)
        assert (delivery.attempts, right.connections) == (1, 1)


async def test_so_many_tests_of_an_endpoint_wait_at_once(database: Database) -> None:
    endpoints, tenant = WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS), new_id()
    async with receiver() as right:
        endpoint, _ = await endpoints.add(tenant, _url(right), ["invoice.*"])
        second, _ = await endpoints.add(tenant, _url(right), ["invoice.*"])
        for _ in range(MOST_TESTS):
            await endpoints.send_test(tenant, endpoint.id)
        with pytest.raises(InvalidWebhook, match="10 tests"):
            await endpoints.send_test(tenant, endpoint.id)
        await endpoints.send_test(tenant, second.id)
        while await _dispatcher(database).run():
            pass
        assert len(right.received) == MOST_TESTS + 1
        await endpoints.send_test(tenant, endpoint.id)


async def test_an_attempt_that_cannot_be_made_ends_no_other(database: Database) -> None:
    async def fails(host: str, port: int) -> list[str]:
        raise UnicodeError("label empty or too long")

    endpoints, tenant = WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS), new_id()
    async with receiver() as right:
        bad, _ = await endpoints.add(tenant, "http://hook.test/", ["invoice.*"])
        good, _ = await endpoints.add(tenant, _url(right), ["invoice.*"])
        await _happen(database, tenant, "invoice.paid", count=2)
        policy = AddressPolicy(allow_http=True, networks=POLICY.networks, resolve=_only_literals(fails))
        await Dispatcher(database, CIPHER, WebhookSender(policy), give_up_s=0).run()
        assert {each.state for each in await endpoints.deliveries(tenant, good.id)} == {"delivered"}
        failed = await endpoints.deliveries(tenant, bad.id)
        assert {(each.state, each.attempts) for each in failed} == {("failed", 1)}
        assert all("UnicodeError" in each.error for each in failed)


def _only_literals(otherwise: Any) -> Any:
    async def resolve(host: str, port: int) -> list[str]:
        return [host] if host == "127.0.0.1" else await otherwise(host, port)

    return resolve


async def test_a_message_made_while_its_endpoint_is_removed_fails(database: Database) -> None:
    """The transaction that makes a message may have read the endpoint before it was removed."""
    endpoints, tenant = WebhookEndpoints(database, CIPHER, POLICY, WEBHOOK_TOPICS), new_id()
    async with receiver() as right:
        endpoint, _ = await endpoints.add(tenant, _url(right), ["*"])
        await endpoints.remove(tenant, endpoint.id)
        row = delivery_row(endpoint.id, tenant, new_id(), "webhook.test", "{}", at=0, now=await database.now())
        async with database.transaction() as session:
            await session.execute(insert(webhook_delivery).values(row))
        await _dispatcher(database).run()
        (delivery,) = await endpoints.deliveries(tenant)
        assert (delivery.state, delivery.error, delivery.attempts) == ("failed", "the endpoint was removed", 0)
        assert right.connections == 0


async def test_what_is_refused(database: Database) -> None:
    strict, tenant = WebhookEndpoints(database, CIPHER, AddressPolicy(), WEBHOOK_TOPICS), new_id()
    for field, url, topics in (
        ("url", "http://hook.test/", ["*"]),
        ("url", "https://169.254.169.254/latest", ["*"]),
        ("url", "https://localhost:1/", []),
        ("topics", "https://hook.test/", []),
        ("topics", "https://hook.test/", ["invoice.*", "Invoice"]),
        ("topics", "https://hook.test/", ["*.paid"]),
        ("topics", "https://hook.test/", ["a,b"]),
        ("topics", "https://hook.test/", ["invoice.payed"]),
        ("topics", "https://hook.test/", ["invoices.*"]),
        ("description", "https://hook.test/", ["*"]),
    ):
        with pytest.raises(InvalidWebhook) as refusal:
            await strict.add(tenant, url, topics, "x" * 501)
        assert refusal.value.field == field or not topics
    assert await strict.list_all(tenant) == []
    for number in range(MAX_ENDPOINTS):
        await strict.add(tenant, f"https://hook.test/{number}", ["*"])
    with pytest.raises(InvalidWebhook, match="50"):
        await strict.add(tenant, "https://hook.test/", ["*"])


async def test_those_added_at_once_are_counted_one_after_the_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhooks.endpoints.MAX_ENDPOINTS", 2)
    endpoints, tenant = WebhookEndpoints(database, CIPHER, AddressPolicy(), WEBHOOK_TOPICS), new_id()
    adding = [endpoints.add(tenant, f"https://hook.test/{number}", ["*"]) for number in range(8)]
    done = await asyncio.gather(*adding, return_exceptions=True)
    assert sum(isinstance(one, InvalidWebhook) for one in done) == 6
    assert len(await endpoints.list_all(tenant)) == 2


@pytest.mark.parametrize("change", ["enable", "remove"])
async def test_an_endpoint_that_is_removed_meanwhile_stays_removed(
    change: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints, tenant = WebhookEndpoints(database, CIPHER, AddressPolicy(), WEBHOOK_TOPICS), new_id()
    endpoint, _ = await endpoints.add(tenant, "https://hook.test/", ["*"])
    row_of, removing = endpoints._row, []

    async def removed_after_the_look(*args: Any, **kwargs: Any) -> Any:
        row = await row_of(*args, **kwargs)
        if not removing:
            removing.append(asyncio.create_task(WebhookEndpoints.remove(endpoints, tenant, endpoint.id)))
            await asyncio.wait(removing, timeout=0.3)
        return row

    monkeypatch.setattr(endpoints, "_row", removed_after_the_look)
    await asyncio.gather(getattr(endpoints, change)(tenant, endpoint.id), return_exceptions=True)
    outcome = (await asyncio.gather(*removing, return_exceptions=True))[0]
    assert isinstance(outcome, WebhookNotFound) == (change == "remove"), "only one has removed it"
    assert await endpoints.list_all(tenant) == []
    async with database.reading() as session:
        (row,) = await session.execute(select(webhook_endpoint))
    assert (row.state, bytes(row.secret)) == ("removed", b"")


def test_delays_grow_and_stay_in_their_bounds() -> None:
    for failures, usual in ((1, 5), (2, 20), (3, 80), (4, 320), (8, 43_200), (60, 43_200)):
        for _ in range(50):
            assert usual * 500_000 <= delay_us(failures) < usual * 1_500_000
    assert len({delay_us(3) for _ in range(20)}) > 10


@given(st.binary(max_size=200), st.integers(1_700_000_000, 1_700_000_200), st.lists(st.just(0), min_size=1, max_size=3))
def test_signatures_are_the_standards(body: bytes, seconds: int, count: list[int]) -> None:
    keys = [new_secret() for _ in count]
    made = headers("evt_1", seconds, body, keys)
    for key in keys:
        oracle = Webhook(encode_secret(key)).sign("evt_1", _moment(seconds), body.decode("latin-1"))
        expected = headers("evt_1", seconds, body.decode("latin-1").encode(), [key])["webhook-signature"]
        assert expected == oracle
    assert made["webhook-signature"].count("v1,") == len(keys)


def _moment(seconds: int) -> Any:
    import datetime

    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def test_patterns_of_topics() -> None:
    assert matches_any(["*"], "invoice.paid")
    assert matches_any(["budget.threshold", "invoice.*"], "invoice.paid")
    assert not matches_any(["invoice.*"], "invoices.paid")
    assert not matches_any(["invoice.*"], "invoice")
    assert not matches_any(["invoice"], "invoice.paid")
