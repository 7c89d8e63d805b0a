"""/admin/v1/audit: who sees which entries, and in which form."""

from __future__ import annotations

import csv
import io
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from audit_log.actors import Actor, acting_as
from audit_log.reading import Scope
from audit_log.record import record_change
from audit_log.tables import PLATFORM, audit_entry
from billing.accounts.balances import Balances
from billing.approvals.approvals import Approvals
from billing.pending_changes import ChangePending
from billing.platform_settings import APPROVALS, PlatformSettings
from billing.prices import PriceCatalog
from gateway.admin.audit import scopes_of
from storage.bus import LocalBus
from storage.database.base import new_id
from tenancy.administration.suspension import Suspensions
from tenancy.rights.principals import Membership, Principal
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

AUDIT = "/admin/v1/audit"


class _Reader:
    """Somebody who reads the log."""

    def __init__(self, stack: Stack, key: str) -> None:
        self.http, self.headers = stack.http, {"authorization": f"Bearer {key}"}

    async def get(self, query: str = "", status: int = 200) -> Any:
        answer = await self.http.get(f"{AUDIT}{query}", headers=self.headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def actions(self, query: str = "") -> list[str]:
        return [entry["action"] for entry in (await self.get(query))["data"]]


async def _operator(stack: Stack) -> _Reader:
    return _Reader(stack, (await stack.tenancy.create_operator_key("Ann")).key)


async def _record(stack: Stack, action: str, tenant: UUID | None, project: UUID | None = None, **more: Any) -> None:
    with acting_as(more.pop("actor", Actor("admin_key", "tpk_7", "reports", address="192.0.2.9"))):
        async with stack.database.transaction() as session:
            owner = {"tenant_id": tenant, "project_id": project}
            await record_change(session, action, target="thing", target_id="t1", **owner, **more)


async def test_who_sees_what(stack: Stack) -> None:
    other = await stack.tenancy.create_tenant("other")
    await _record(stack, "budget.set", stack.tenant.id, after={"limit": "7"})
    await _record(stack, "budget.set", other.id)
    await _record(stack, "period.closed", None)
    ann, owner = await _operator(stack), _Reader(stack, stack.admin_key)
    assert {"budget.set", "period.closed", "tenant.created"} <= set(await ann.actions("?limit=100"))
    own = (await owner.get("?limit=100"))["data"]
    assert {entry["tenant"] for entry in own} == {f"tenant_{stack.tenant.id.hex}"}
    assert "period.closed" not in {entry["action"] for entry in own}
    (budget,) = (await owner.get("?action=budget.set"))["data"]
    assert (budget["before"], budget["after"], budget["reason"]) == (None, {"limit": "7"}, "")
    assert budget["actor"] == {
        "means": "admin_key", "id": "tpk_7", "name": "reports", "through": "", "address": "192.0.2.9",
    }  # fmt: skip
    await owner.get("?tenant=other", status=404)
    await owner.get(f"?tenant=tenant_{other.id.hex}", status=404)
    assert await owner.actions("?tenant=demo&action=budget.*") == ["budget.set"]
    assert await owner.actions("?platform=true") == []
    assert await ann.actions("?platform=True&action=period") == ["period.closed"]
    await _Reader(stack, stack.key).get(status=403)
    await _Reader(stack, "tp_live_none").get(status=401)


async def test_tenants_learn_of_operators_the_name_alone(stack: Stack) -> None:
    for n, actor in enumerate(
        (
            Actor("operator_key", "tpk_1", "Ann", "ann@host", "192.0.2.1", "req_1"),
            Actor("command", "root@host", "root@host"),
            Actor("session", "user_1", "Ann", "operator", "192.0.2.1"),
        )
    ):
        await _record(stack, f"seen.{n}", stack.tenant.id, actor=actor)
    ann, owner = await _operator(stack), _Reader(stack, stack.admin_key)
    for entry in (await owner.get("?action=seen.*"))["data"]:
        assert (entry["actor"]["id"], entry["actor"]["through"], entry["actor"]["address"]) == ("", "", "")
        assert entry["actor"]["name"]
    assert (await ann.get("?action=seen.0"))["data"][0]["actor"]["address"] == "192.0.2.1"
    for text in ("192.0.2.1", "ann@host", "root@host", "tpk_1"):
        for form in ("json", "csv"):
            answer = await stack.http.get(f"{AUDIT}?action=seen.*&format={form}", headers=owner.headers)
            assert text not in answer.text
    for hidden in ("root@host", "tpk_1", "user_1"):
        assert await owner.actions(f"?action=seen.*&actor={hidden}") == [], "nor is it guessed"
        assert len(await ann.actions(f"?action=seen.*&actor={hidden}")) == 1
    assert await owner.actions("?action=seen.*&actor=operator") == ["seen.1"]
    assert await owner.actions("?action=seen.*&actor=Ann") == ["seen.2", "seen.0"]


async def test_tenants_do_not_read_what_operators_keep_to_themselves(stack: Stack) -> None:
    ann, owner = await _operator(stack), _Reader(stack, stack.admin_key)
    suspensions = Suspensions(stack.database, LocalBus())
    with acting_as(Actor("operator_key", "tpk_1", "Ann")):
        for project in (None, stack.project.id):
            await suspensions.suspend(stack.tenant.id, project, reason="SECRET fraud")
            await suspensions.resume(stack.tenant.id, project, reason="SECRET cleared")
        await PlatformSettings(stack.database).set(APPROVALS, "on", by="Ann and Bob", via="test")
        pending = []
        for reason in ("SECRET risk", "SECRET more"):
            with pytest.raises(ChangePending) as change:
                await Balances(stack.database).grant(
                    stack.tenant.id, 987_000_000_000, "USD", kind="promo", reason=reason
                )
            pending.append(change.value.change.id)
        approvals = Approvals(stack.database, PriceCatalog(stack.database))
        await approvals.withdraw(pending[0], lambda _: True, "SECRET no")
    kinds = "tenant.suspended tenant.resumed project.suspended project.resumed change.proposed change.withdrawn"
    assert set(kinds.split()) <= set(await owner.actions("?limit=100"))
    for form in ("json", "csv"):
        answer = await stack.http.get(f"{AUDIT}?limit=100&format={form}", headers=owner.headers)
        for hidden in ("SECRET", "987000000000", "0.987"):
            assert hidden not in answer.text
    (suspended,) = (await owner.get("?action=tenant.suspended"))["data"]
    assert suspended["after"]["running"] == "finish"
    with acting_as(Actor("operator_key", "tpk_2", "Bob")):
        await approvals.approve(pending[1], lambda _: True, "SECRET yes")
    (approved,) = (await owner.get("?action=change.approved"))["data"]
    assert (approved["reason"], approved["before"], approved["after"]["state"]) == ("", None, "approved")
    assert (await ann.get("?action=tenant.suspended"))["data"][0]["reason"] == "SECRET fraud"
    assert "SECRET no" in {entry["reason"] for entry in (await ann.get("?action=change.*"))["data"]}


async def test_filters_and_pages(stack: Stack) -> None:
    for n in range(7):
        await _record(
            stack, f"page.{n}", stack.tenant.id, stack.project.id, actor=Actor("command", "a@b", f"who{n % 2}")
        )
    ann = await _operator(stack)
    seen: list[str] = []
    after = ""
    while True:
        listed = await ann.get(f"?action=page.*&limit=3{after}")
        seen += [entry["action"] for entry in listed["data"]]
        if not listed["has_more"]:
            break
        after = f"&after={listed['data'][-1]['id']}"
    assert seen == [f"page.{n}" for n in reversed(range(7))]
    assert await ann.actions("?action=page.*&actor=who1") == ["page.5", "page.3", "page.1"]
    assert len(await ann.actions("?action=page.*&actor=a@b")) == 7
    assert len(await ann.actions(f"?action=page.*&project=project_{stack.project.id.hex}")) == 7
    assert await ann.actions(f"?action=page.*&project=project_{new_id().hex}") == []
    assert len(await ann.actions("?target=thing&target_id=t1&action=page.*")) == 7
    async with stack.database.reading() as session:
        at = await session.scalar(select(audit_entry.c.at).where(audit_entry.c.action == "page.3"))
    from_at, to_at = f"?action=page.*&from={_instant(at)}", f"?action=page.*&to={_instant(at)}"
    assert set(await ann.actions(from_at)) >= {"page.3"}
    assert "page.3" not in await ann.actions(to_at)
    for wrong in ("?after=x", "?after=audit_x_1", "?project=demo", "?from=yesterday", "?format=xml", "?actr=a"):
        await ann.get(wrong, status=400)
    assert (await ann.get(f"?after=audit_{PLATFORM.hex}_999"))["data"] == []


def _instant(at: int) -> str:
    from audit_log.csv_rows import format_at

    return format_at(at)


@pytest.mark.parametrize("by_header", [False, True])
async def test_csv_is_whole_and_safe(stack: Stack, by_header: bool) -> None:
    evil = '=HYPERLINK("http://example.com")'
    for n in range(450):  # more than one piece
        await _record(stack, f"row.{n}", stack.tenant.id, reason=evil if n % 2 else 'a,"b"')
    ann = await _operator(stack)
    query = f"{AUDIT}?action=row.*" + ("" if by_header else "&format=csv")
    headers = ann.headers | ({"accept": "text/csv"} if by_header else {})
    answer = await stack.http.get(query, headers=headers)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["action"] for row in rows] == [f"row.{n}" for n in reversed(range(450))]
    assert {row["reason"] for row in rows} == {f"'{evil}", 'a,"b"'}
    empty = await stack.http.get(f"{AUDIT}?action=none.*&format=csv", headers=ann.headers)
    assert empty.text.splitlines() == [answer.text.splitlines()[0]]


async def test_what_an_http_change_records(stack: Stack) -> None:
    body = {"url": "https://example.com/hook", "topics": ["*"]}
    headers = {"authorization": f"Bearer {stack.admin_key}"}
    answer = await stack.http.post("/v1/webhooks", headers=headers, json=body)
    assert answer.status_code in (200, 201), answer.text
    (entry,) = (await (await _operator(stack)).get("?action=webhook_endpoint.added"))["data"]
    assert entry["request_id"] == answer.headers["x-request-id"]
    assert (entry["actor"]["means"], entry["actor"]["address"]) == ("admin_key", "127.0.0.1")
    assert "secret" not in str(entry["after"])


def test_scopes() -> None:
    tenant, project = new_id(), new_id()

    def scopes(*memberships: Membership, **more: Any) -> list[Scope]:
        return scopes_of(Principal("session", new_id(), "user_1", memberships=memberships, **more))

    assert scopes(Membership("owner")) == [Scope()]
    assert scopes(Membership("finance")) == [Scope(money=True)]
    assert scopes(Membership("admin", tenant), Membership("finance", tenant, project)) == [
        Scope(tenant), Scope(tenant, project, money=True),
    ]  # fmt: skip
    assert scopes(Membership("viewer"), Membership("developer", tenant)) == []
    assert scopes(Membership("owner"), permissions=frozenset({"usage.read"})) == []


async def test_finance_sees_money_alone(stack: Stack) -> None:
    from audit_log.reading import AuditLog, Filter

    for action in ("grant.created", "credit_line.set", "creditXline.set", "key.created", "invoice.finalized"):
        await _record(stack, action, stack.tenant.id, stack.project.id)
    log, one = AuditLog(stack.database), Filter(target="thing")
    money = await log.page(one, [Scope(stack.tenant.id, money=True)], 100)
    assert {entry.action for entry in money} == {"grant.created", "credit_line.set", "invoice.finalized"}
    assert await log.page(one, [], 100) == []
    assert await log.page(one, [Scope(stack.tenant.id, new_id())], 100) == []
    assert len(await log.page(one, [Scope(new_id()), Scope(stack.tenant.id, stack.project.id)], 100)) == 5


async def test_where_a_chain_ends(stack: Stack) -> None:
    other = await stack.tenancy.create_tenant("other")
    ann, owner = await _operator(stack), _Reader(stack, stack.admin_key)
    before = await owner.get("/chain?tenant=demo")
    await _record(stack, "budget.set", stack.tenant.id)
    chain = await owner.get("/chain?tenant=demo")
    assert (chain["entries"], chain["checked"]) == (before["entries"] + 1, before["entries"] + 1)
    assert (chain["problems"], chain["tenant"]) == ([], f"tenant_{stack.tenant.id.hex}")
    assert chain["head"] != before["head"]
    assert (await ann.get("/chain"))["tenant"] is None
    await owner.get("/chain", status=403)
    await owner.get(f"/chain?tenant=tenant_{other.id.hex}", status=404)
    await owner.get("/chain?tenants=demo", status=400)
