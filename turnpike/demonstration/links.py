"""One-time sign-in links of a demonstration's people, so that a visitor sees what each role sees."""

from __future__ import annotations

from turnpike.admin_services import AdminServices
from turnpike.demonstration.cast import NORDLICHT, OPERATORS, QUILLSTONE

LINKS_FILE = "sign-in-links"


async def sign_in_links(admin: AdminServices, base_url: str) -> str:
    """A line for each but the owner, whose link is shown: who that is, of which role where, and the link. Raises
    DatabaseUnavailable."""
    users, lines = admin.users, []
    people = [(person, "platform") for person in OPERATORS[1:]]
    people += [(person, customer.name) for customer in (NORDLICHT, QUILLSTONE) for person in customer.people]
    for person, where in people:
        user = await users.accounts.find(person.email)
        path = (await users.links.create(user.id, "sign_in", users.clock())).path
        lines.append(f"{person.name}, {person.role} of {person.project or where}: {base_url}{path}")
    return "\n".join(lines)
