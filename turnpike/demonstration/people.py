"""Sets the demonstration up: operators, customers with their projects, people and keys, and who acts when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from msgspec import Struct, field

from audit_log.actors import Actor, acting_as
from gateway.admission.prepared_request import Payer
from tenancy.rights.key_limits import key_limits
from tenancy.rights.principals import Membership, Principal
from tenancy.users.accounts import User
from tenancy.users.identifiers import user_public_id
from turnpike.admin_services import AdminServices
from turnpike.demonstration.cast import CUSTOMERS, OPERATORS, Customer, Person
from turnpike.demonstration.past import DAY, Past
from turnpike.demonstration.requests import PayerName
from turnpike.demonstration.traffic import PROGRAMS

LINKS_FILE = "sign-in-links"
"""The file with the links of `sign_in_links`."""


class Population(Struct):
    """Who there is. `tenants` by the customer's name, `projects` by customer and project, `users` by address, `payers`
    by customer, project and the key's name, `keys` the whole keys likewise."""

    tenants: dict[str, UUID] = field(default_factory=dict)
    projects: dict[tuple[str, str], UUID] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    payers: dict[PayerName, Payer] = field(default_factory=dict)
    keys: dict[PayerName, str] = field(default_factory=dict)

    @contextmanager
    def acting(self, email: str) -> Iterator[Actor]:
        """Whatever runs inside is this user's doing, in a session."""
        user = user_public_id(self.users[email].id)
        actor = Actor("session", user, email, address="203.0.113.7", user=user)
        with acting_as(actor):
            yield actor

    def principal(self, email: str) -> Principal:
        """The user as a session's principal."""
        user = self.users[email]
        public = user_public_id(user.id)
        return Principal("session", user.id, public, email, user.memberships, user=public)


def payer_name(customer: Customer, project: str, key: str) -> PayerName:
    """The name under which a key is known here."""
    return customer.name, project, key


async def set_up(admin: AdminServices, past: Past) -> Population:
    """Make operators, customers, projects, people and keys, a few minutes apart."""
    made = Population()
    for person in OPERATORS:
        await _user(admin, made, person, Membership(person.role))
    for customer in CUSTOMERS:
        past.move_to(past.now + DAY // 48)
        with made.acting(OPERATORS[1].email):
            await _customer(admin, made, customer)
    past.move_to(past.now + DAY // 48)
    for customer in CUSTOMERS:
        email = customer.people[1].email if len(customer.people) > 1 else OPERATORS[1].email
        with made.acting(email):
            await _keys(admin, made, customer)
    return made


async def _user(admin: AdminServices, made: Population, person: Person, *roles: Membership) -> None:
    made.users[person.email] = await admin.users.accounts.create(person.email, person.name, admin.users.clock(), roles)


async def _customer(admin: AdminServices, made: Population, customer: Customer) -> None:
    tenant = await admin.tenancy.create_tenant(customer.name)
    made.tenants[customer.name] = tenant.id
    for name in customer.projects:
        made.projects[customer.name, name] = (await admin.tenancy.create_project(tenant.id, name)).id
    for person in customer.people:
        project = made.projects[customer.name, person.project] if person.project else None
        await _user(admin, made, person, Membership(person.role, tenant.id, project))


async def _keys(admin: AdminServices, made: Population, customer: Customer) -> None:
    tenant = made.tenants[customer.name]
    for program in PROGRAMS:
        if program.customer == customer.name:
            project = made.projects[customer.name, program.project]
            limits = key_limits(models=[program.model]) if program.ttl == "1h" else key_limits()
            issued = await admin.tenancy.create_key(tenant, project, program.key, limits=limits)
            name = payer_name(customer, program.project, program.key)
            row = await admin.tenancy.key(issued.public_id, tenant)
            made.keys[name] = issued.key
            made.payers[name] = Payer(tenant, project, row.id, program.project, issued.public_id)


async def sign_in_links(admin: AdminServices, base_url: str) -> str:
    """A line for each but the owner, whose link is shown: who that is, of which role where, and the link. Raises
    DatabaseUnavailable."""
    users, lines = admin.users, []
    people = [(person, "platform") for person in OPERATORS[1:]]
    people += [(person, customer.name) for customer in CUSTOMERS for person in customer.people]
    for person, where in people:
        user = await users.accounts.find(person.email)
        path = (await users.links.create(user.id, "sign_in", users.clock())).path
        lines.append(f"{person.name}, {person.role} of {person.project or where}: {base_url}{path}")
    return "\n".join(lines)
