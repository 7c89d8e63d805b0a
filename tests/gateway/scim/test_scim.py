"""/scim/v2 by the tester of the protocol, and by what Entra and Okta send; what a tenant's token changes elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx2
import pytest
from msgspec import structs
from scim2_client.engines.httpx2 import SyncSCIMClient
from scim2_tester import Status, check_server

from gateway.scim.expressions import ScimRefused, apply_patch
from gateway.scim.schemas import GROUP
from tenancy.identity import directory_people
from tenancy.identity.directory_people import PersonFields
from tenancy.rights.principals import Principal
from tenancy.users.identifiers import user_public_id
from tests.gateway.browser import TESTER, Browser, acting_as, browser_of, make_user
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
ANN, OWNER = "ann@acme.example", "owner@acme.example"


class Client:
    """A SCIM client with a token."""

    def __init__(self, stack: Stack, token: str) -> None:
        self.stack, self.token = stack, token

    async def __call__(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        headers = {"authorization": f"Bearer {self.token}"}
        answer = await self.stack.http.request(method, f"/scim/v2{path}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def patch(self, path: str, *operations: Any, status: int = 200) -> Any:
        return await self("PATCH", path, {"schemas": [PATCH], "Operations": list(operations)}, status)


@pytest.fixture
async def owner(stack: Stack) -> AsyncIterator[Browser]:
    """The tenant's owner in a browser."""
    await make_user(stack.users, OWNER, ("owner", stack.tenant.id, None))
    async with browser_of(stack) as browser:
        await browser.sign_in(OWNER)
        yield browser


@pytest.fixture
async def scim(stack: Stack, owner: Browser) -> Client:
    made = await owner.post("/tenants/demo/directory/token", status=201)
    assert made["role"] == "owner"
    return Client(stack, made["token"])


async def test_the_tester_of_the_protocol_finds_nothing(stack: Stack, scim: Client) -> None:
    def check() -> list[Any]:
        headers = {"Authorization": f"Bearer {scim.token}"}
        with httpx2.Client(base_url=f"{stack.base}/scim/v2", headers=headers) as client:
            return check_server(SyncSCIMClient(client))

    results = await asyncio.to_thread(check)
    wrong = [(one.title, one.reason) for one in results if one.status not in (Status.SUCCESS, Status.SKIPPED)]
    assert len(results) > 50
    assert not wrong


async def test_a_member_is_found_changed_and_has_left(stack: Stack, scim: Client, owner: Browser) -> None:
    ann = await make_user(stack.users, ANN, ("developer", stack.tenant.id, None))
    new = {"userName": "Ann@Acme.example", "externalId": "0a1b", "emails": [{"value": ANN, "primary": True}]}
    made = await scim("POST", "/Users", {"schemas": [], **new}, 201)
    people = (await owner.get("/tenants/demo/directory/people"))["data"]
    assert [(one["user_name"], one["user"]) for one in people] == [(ANN, user_public_id(ann.id))]
    error = await scim("POST", "/Users", new, 409)
    assert error["scimType"] == "uniqueness"
    found = await scim("GET", '/Users?filter=userName eq "ANN@acme.example"&count=1')
    assert (found["totalResults"], found["Resources"][0]["id"]) == (1, made["id"])
    assert (await scim("GET", '/Users?filter=userName eq "bob"'))["totalResults"] == 0
    assert (await scim("GET", '/Users?filter=userName co "a"', status=400))["scimType"] == "invalidFilter"
    # as Entra says it: paths with filters, and booleans as texts
    work = {"op": "Add", "path": 'emails[type eq "work"].value', "value": "a@acme.example"}
    changed = await scim.patch(f"/Users/{made['id']}", work, {"op": "Replace", "value": {"name.givenName": "Ann"}})
    assert changed["emails"][1] == {"type": "work", "value": "a@acme.example"}
    assert changed["name"] == {"givenName": "Ann"}
    async with browser_of(stack) as browser:
        await browser.sign_in(ANN)
        assert (await browser.get("/users/me"))["memberships"]
        began = time.monotonic()
        gone = await scim.patch(f"/Users/{made['id']}", {"op": "Replace", "path": "active", "value": "False"})
        assert gone["active"] is False
        await browser.get("/session", 401)
        assert time.monotonic() - began < 1
    assert ann.id not in [one.user_id for one in await stack.users.members.at(_tenant(stack))]
    # the account is there: it comes in again where it is asked for
    await stack.users.accounts.get(ann.id)


async def test_a_token_changes_one_tenant_alone(stack: Stack, scim: Client) -> None:
    """Who is also in another tenant and at the platform leaves this one, and is left as she is elsewhere."""
    with acting_as(TESTER):
        other = await stack.tenancy.create_tenant("other")
    ann = await make_user(stack.users, ANN, "viewer", ("developer", other.id, None), ("admin", stack.tenant.id, None))
    with acting_as(TESTER):
        by = Principal(
            "command", UUID(int=0), "tester", memberships=(structs.replace(ann.memberships[0], role="owner"),)
        )
        invite = stack.users.links.invite
        mine = await invite(by, ANN, "owner", _tenant(stack), stack.users.clock())
        elsewhere = await invite(
            by, ANN, "owner", structs.replace(_tenant(stack), tenant_id=other.id), stack.users.clock()
        )
    made = await scim("POST", "/Users", {"userName": ANN, "active": True}, 201)
    async with browser_of(stack) as browser:
        await browser.sign_in(ANN)
        await scim("PUT", f"/Users/{made['id']}", {"userName": "eve@evil.example", "active": False})
        me = await browser.get("/users/me")  # still signed in, under her name
    assert me["email"] == ANN
    assert {(one["role"], one["tenant"]) for one in me["memberships"]} == {
        ("viewer", None),
        ("developer", f"tenant_{other.id.hex}"),
    }
    user = await stack.users.accounts.get(ann.id)
    assert (user.email, user.disabled_at) == (ANN, None)
    async with browser_of(stack) as browser:
        accepting = {"token": mine.token, "password": "correct horse battery staple"}
        await browser.post("/invitations/accept", accepting, 401)
        await browser.post("/invitations/accept", {**accepting, "token": elsewhere.token})


async def test_an_address_alone_makes_nobody_a_member(stack: Stack, scim: Client) -> None:
    """Somebody of another tenant has the address: the directory gives that account nothing, and does not tell."""
    with acting_as(TESTER):
        other = await stack.tenancy.create_tenant("other")
    squatter = await make_user(stack.users, ANN, ("owner", other.id, None))
    made = await scim("POST", "/Users", {"userName": ANN}, 201)
    unknown = await scim("POST", "/Users", {"userName": "bob@acme.example"}, 201)
    assert made.keys() == unknown.keys()
    group = await scim("POST", "/Groups", {"displayName": "All", "members": [{"value": made["id"]}]}, 201)
    await scim("DELETE", f"/Users/{made['id']}", status=204)
    assert "members" not in await scim("GET", f"/Groups/{group['id']}")
    user = await stack.users.accounts.get(squatter.id)
    assert [one.tenant_id for one in user.memberships] == [other.id]


async def test_groups_give_no_more_than_their_makers_may(stack: Stack, scim: Client, owner: Browser) -> None:
    ann = await make_user(stack.users, ANN, ("viewer", stack.tenant.id, None))
    with acting_as(TESTER):
        project = (await stack.tenancy.list_projects(stack.tenant.id))[0]
    person = await scim("POST", "/Users", {"userName": ANN}, 201)
    group = await scim("POST", "/Groups", {"displayName": "Dev"}, 201)
    at = f"/tenants/demo/directory/groups/{group['id']}/role"
    await owner.call("PUT", at, {"role": "developer", "project": "default"})
    member = {"op": "add", "path": "members", "value": [{"value": person["id"]}]}
    await scim.patch(f"/Groups/{group['id']}", member)

    async def roles() -> set[tuple[str, Any]]:
        user = await stack.users.accounts.get(ann.id)
        return {(one.role, one.project_id) for one in user.memberships}

    assert await roles() == {("viewer", None), ("developer", project.id)}
    assert (await scim("GET", f"/Users/{person['id']}"))["groups"][0]["display"] == "Dev"
    await owner.call("PUT", at, {"role": "owner", "project": "default"})
    assert await roles() == {("viewer", None), ("owner", project.id)}
    # an admin's token gives no owner, and takes away none
    await make_user(stack.users, "admin@acme.example", ("admin", stack.tenant.id, None))
    async with browser_of(stack) as admin:
        await admin.sign_in("admin@acme.example")
        await admin.post("/tenants/demo/directory/token", status=403)
        await owner.call("DELETE", "/tenants/demo/directory")
        weaker = Client(stack, (await admin.post("/tenants/demo/directory/token", status=201))["token"])
        await admin.call("PATCH", "/tenants/demo/directory", {"member_role": "admin"})
    await scim("GET", "/Users", status=401)
    boss = await weaker("POST", "/Users", {"userName": OWNER}, 201)
    await weaker.patch(f"/Users/{boss['id']}", {"op": "replace", "value": {"active": False}}, status=409)
    await make_user(stack.users, "second@acme.example", ("owner", stack.tenant.id, None))
    await weaker.patch(f"/Users/{boss['id']}", {"op": "replace", "value": {"active": False}}, status=403)


async def test_keys_stay_and_are_listed_or_are_revoked(stack: Stack, scim: Client, owner: Browser) -> None:
    for email, switch in ((ANN, False), ("bob@acme.example", True)):
        user = await make_user(stack.users, email, ("developer", stack.tenant.id, None))
        async with browser_of(stack) as browser:
            await browser.sign_in(email)
            key = await browser.post("/tenants/demo/keys", {"name": email, "project": "default"}, 201)
        await owner.call("PATCH", "/tenants/demo/directory", {"revoke_keys": switch})
        person = await scim("POST", "/Users", {"userName": email}, 201)
        await scim("DELETE", f"/Users/{person['id']}", status=204)
        listed = (await owner.get("/tenants/demo/former-members-keys"))["data"]
        alive = {one["user"] for one in listed} >= {user_public_id(user.id)}
        assert alive is not switch
        answer = await stack.http.get("/v1/models", headers={"authorization": f"Bearer {key['key']}"})
        assert answer.status_code == (401 if switch else 200)


async def test_a_change_of_two_at_once_is_made_again(
    stack: Stack, scim: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PATCH has read a person when another takes her out; writing what it read would let her in again."""
    person = await scim("POST", "/Users", {"userName": ANN}, 201)
    group = await scim("POST", "/Groups", {"displayName": "Dev", "members": [{"value": person["id"]}]}, 201)
    people = stack.gateway.services.identity.directory
    read_person, read_group = people.person, people.group
    between: list[Any] = []
    inside: list[Any] = []

    async def then(found: Any) -> Any:
        if between and not inside:  # what comes between reads too
            inside.append(between.pop())
            await inside[0]()
            inside.clear()
        return found

    async def person_read(*which: Any) -> Any:
        return await then(await read_person(*which))

    async def group_read(*which: Any) -> Any:
        return await then(await read_group(*which))

    monkeypatch.setattr(people, "person", person_read)
    monkeypatch.setattr(people, "group", group_read)
    fields = structs.asdict(await read_person(stack.tenant.id, UUID(person["id"])))
    fields = {name: fields[name] for name in ("user_name", "external_id", "email")} | {"content": {"active": False}}

    async def leave() -> None:
        with acting_as(TESTER):
            gone = PersonFields(**fields, active=False)
            await people.put_person(stack.tenant.id, gone, UUID(person["id"]))

    async def empty() -> None:
        with acting_as(TESTER):
            await people.put_group(stack.tenant.id, "Dev", "", [], UUID(group["id"]))

    between = [leave]
    title = {"op": "replace", "path": "title", "value": "Dr."}
    changed = await scim.patch(f"/Users/{person['id']}", title)
    assert not between
    assert (changed["title"], changed["active"]) == ("Dr.", False)
    between = [empty]
    changed = await scim.patch(f"/Groups/{group['id']}", {"op": "replace", "path": "externalId", "value": "e"})
    assert (changed["externalId"], "members" in changed) == ("e", False)
    now = stack.users.clock() - 60_000_000
    monkeypatch.setattr(stack.users, "clock", lambda: now)  # it stands, or goes back
    between = [leave] * 9
    await scim.patch(f"/Users/{person['id']}", title, status=409)
    assert len(between) == 6


async def test_what_a_body_may_do_is_bounded(stack: Stack, scim: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    person = await scim("POST", "/Users", {"userName": ANN}, 201)
    at, members = f"/Users/{person['id']}", [{"value": person["id"]}]
    many = {"op": "add", "value": {f"x{place}": 1 for place in range(1_001)}}
    assert (await scim.patch(at, many, status=400))["scimType"] == "invalidSyntax"
    await scim.patch(at, {"op": "add", "value": {"Schemas": [], "title": "Dr."}})
    grown = {"op": "add", "path": "emails", "value": [{}] * 101}
    assert "100 at most" in (await scim.patch(at, grown, grown, status=400))["detail"]
    for wrong in (
        {"op": "add", "path": "emails", "value": [{"value": {}}]},
        {"op": "replace", "path": "emails.value", "value": []},
        {"op": "remove", "path": 'emails[type eq "\\q"]'},
    ):
        await scim.patch(at, wrong, status=400)
    names = ("One", "Three", "Two")
    made = [await scim("POST", "/Groups", {"displayName": name, "members": members}, 201) for name in names]
    monkeypatch.setattr(directory_people, "MOST_MEMBERS_SHOWN", 2)
    page = await scim("GET", "/Groups")
    assert (page["totalResults"], page["itemsPerPage"], len(page["Resources"])) == (3, 2, 2)
    page = await scim("POST", "/Groups/.search", {"startIndex": 3})
    assert [one["id"] for one in page["Resources"]] == [made[2]["id"]]


def test_members_are_changed_by_their_ids() -> None:
    ids = [str(UUID(int=place)) for place in range(10_000)]
    group = {"displayName": "All", "members": [{"value": one, "$ref": f"https://a/{one}"} for one in ids]}
    removals = [{"op": "remove", "path": f'members[value eq "{one}"]'} for one in ids[:998]]
    more = [{"op": "add", "path": "members", "value": [{"value": ids[0]}]}]
    more += [{"op": "remove", "path": "members", "value": [{"value": ids[-1]}]}]
    began = time.process_time()
    changed = apply_patch(group, removals + more, GROUP)
    assert time.process_time() - began < 1  # some 30 ms; looking through all of them each time took 10 s
    assert [one["value"] for one in changed["members"]] == [*ids[998:-1], ids[0]]
    assert len(group["members"]) == len(ids)
    assert "members" not in apply_patch(group, [{"op": "replace", "path": "members", "value": []}], GROUP)
    with pytest.raises(ScimRefused):
        apply_patch(group, [{"op": "remove", "path": 'members[$ref eq "x"]'}], GROUP)


def _tenant(stack: Stack) -> Any:
    from tenancy.users.members import Scope

    return Scope(stack.tenant.id)
