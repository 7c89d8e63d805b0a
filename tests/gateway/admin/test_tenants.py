"""/admin/v1/tenants: everybody sees what they have a role in, and learns nothing of the rest."""

from __future__ import annotations

from tests.gateway.admin.desk import Desk, Desks
from tests.gateway.stack import Stack

T = "/tenants"


async def test_operators_create_tenants_and_their_owners_projects(stack: Stack, desks: Desks) -> None:
    ann = Desk(stack, await stack.tenancy.create_operator_key("ann"))
    made = await ann.post(T, {"name": "acme"}, 201)
    assert (made["object"], made["name"]) == ("tenant", "acme")
    assert made["id"].startswith("tenant_")
    assert (await ann.post(T, {"name": "acme"}, 409))["error"]["code"] == "name_taken"
    assert (await ann.post(T, {"name": "a\nb"}, 400))["error"]["param"] == "name"
    for reference in ("acme", made["id"]):
        assert await ann.get(f"{T}/{reference}") == made
    first = await ann.get(f"{T}/acme/projects")
    assert [project["name"] for project in first["data"]] == ["default"]
    project = await ann.post(f"{T}/acme/projects", {"name": "search"}, 201)
    assert project["tenant_id"] == made["id"]
    assert await ann.get(f"{T}/{made['id']}/projects/{project['id']}") == project
    assert await ann.get(f"{T}/acme/projects/search") == project
    await ann.post(f"{T}/acme/projects", {"name": "search"}, 409)
    for role, status in (("owner", 201), ("admin", 201), ("developer", 403), ("finance", 403), ("viewer", 403)):
        await desks.own(role).post(f"{T}/demo/projects", {"name": role}, status)  # type: ignore[arg-type]
    # nobody of a tenant makes tenants
    await desks.own().post(T, {"name": "other"}, 403)


async def test_lists_are_pages_of_what_one_may_see(stack: Stack, desks: Desks) -> None:
    for name in ("b", "a", "c"):
        await stack.tenancy.create_tenant(name)
    operator, owner = desks.operator(), desks.own()
    page = await operator.get(f"{T}?limit=2")
    assert ([each["name"] for each in page["data"]], page["has_more"]) == (["a", "b"], True)
    rest = await operator.get(f"{T}?limit=2&after={page['data'][-1]['id']}")
    assert ([each["name"] for each in rest["data"]], rest["has_more"]) == (["c", "demo"], False)
    assert [each["name"] for each in (await owner.get(T))["data"]] == ["demo"]
    await owner.get(f"{T}?after=a", 400)
    await owner.get(f"{T}?limit=1000", 400)
    await owner.get(f"{T}?colour=red", 400)
    for reference in ("a", "nobody", f"tenant_{'0' * 32}", "tenant_x"):
        for path in ("", "/projects", "/projects/default", "/balance", "/grants", "/budgets", "/statement"):
            refused = await owner.get(f"{T}/{reference}{path}", 404)
            assert refused["error"]["code"] == "not_found"


async def test_a_list_of_tenants_has_their_balances_where_they_may_be_seen(stack: Stack, desks: Desks) -> None:
    await stack.tenancy.create_tenant("a")
    listed = (await desks.operator().get(f"{T}?expand=balance"))["data"]
    assert [each["name"] for each in listed] == ["a", "demo"]
    for each in listed:
        assert each["balance"] == await desks.operator().get(f"{T}/{each['name']}/balance")
    member = desks.role("developer", stack.tenant.id, stack.project.id)
    assert [each["balance"] for each in (await member.get(f"{T}?expand=balance"))["data"]] == [None]
    assert "balance" not in (await member.get(T))["data"][0]
    await member.get(f"{T}?expand=money", 400)


async def test_a_project_member_sees_that_project_only(stack: Stack, desks: Desks) -> None:
    other = await stack.tenancy.create_project(stack.tenant.id, "other")
    member = desks.role("developer", stack.tenant.id, stack.project.id)
    assert [each["name"] for each in (await member.get(f"{T}/demo/projects"))["data"]] == ["default"]
    assert (await member.get(f"{T}/demo/projects/default"))["name"] == "default"
    await member.get(f"{T}/demo/projects/{other.name}", 404)
    await member.get(f"{T}/demo/projects?after=other", 400)
    await member.get(f"{T}/demo/balance", 403)
    assert [each["name"] for each in (await member.get(T))["data"]] == ["demo"]
    await member.get(f"{T}/demo", 403)


async def test_what_belongs_to_nobody_is_a_404(stack: Stack, desks: Desks) -> None:
    stranger = desks.role("owner", (await stack.tenancy.create_tenant("stranger")).id)
    await stranger.get(f"{T}/demo", 404)
    await stranger.get(f"{T}/demo/projects/default", 404)
    await stranger.post(f"{T}/demo/projects", {"name": "mine"}, 404)
    assert (await stack.http.get("/admin/v1/tenants", headers={"x-api-key": stack.key})).status_code == 403
    assert (await stack.http.get("/admin/v1/tenants")).status_code == 401
