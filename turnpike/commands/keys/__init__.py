"""`turnpike keys`: make, change, rotate, revoke and list API keys."""

from __future__ import annotations

from tenancy.rights.permissions import ROLES
from turnpike.api.actions import add_work
from turnpike.command_line import CommandParser
from turnpike.commands.keys import by_hand, elsewhere
from turnpike.commands.keys.typed import NO_LIMIT
from turnpike.operator_identity import add_second_operator

_DEFAULT_OVERLAP = "24h"
_LIMITS = {
    "scopes": "what it may do: permissions, or groups such as read, keys, inference (docs/access.md)",
    "networks": "from where it may be used, such as 192.0.2.0/24",
    "models": "served models that it may use",
    "lanes": "lanes that it may use",
}


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike keys …`."""
    create = add_work(
        parser, "create", "make a key; stdout has the key alone", elsewhere.create_key, by_hand.create_key
    )
    create.add_argument("--tenant", help="whose key it is")
    create.add_argument("--project", help="the key's project")
    create.add_argument("--create-project", action="store_true", help="make the project if the tenant has none of it")
    create.add_argument("--admin", action="store_true", help="a key to administer the tenant, not for inference")
    create.add_argument("--operator", action="store_true", help="a key for who runs Turnpike (/admin/v1), of no tenant")
    create.add_argument("--name", default="", help="what the key is for; with --operator, who presents it")
    create.add_argument("--user", metavar="EMAIL", help="with --operator: the user who this operator is, if it is one")
    create.add_argument("--role", choices=ROLES, help="of an admin or operator key; default: owner")
    text = "change a key's name, end, role or limits; what is not given stays"
    change = add_work(parser, "change", text, elsewhere.change_key, by_hand.change_key)
    text = "a new secret for a key; stdout has the key alone"
    rotate = add_work(parser, "rotate", text, elsewhere.rotate_key, by_hand.rotate_key)
    text = "stop a key, everywhere within a second"
    revoke = add_work(parser, "revoke", text, elsewhere.revoke_key, by_hand.revoke_key)
    for action in (change, rotate, revoke):
        action.add_argument("key", help="its public id, the part after tp_live_ (the whole key works too)")
        action.add_argument("--reason", default="", help="why; kept in the audit log")
    text = "somebody else may have it: stop the batches that it ordered, which go on otherwise"
    revoke.add_argument("--leaked", action="store_true", help=text)
    change.add_argument("--name", help="what the key is for")
    change.add_argument("--role", choices=ROLES, help="of an admin or operator key")
    for action in (create, change):
        for name, text in _LIMITS.items():
            action.add_argument(f"--{name}", metavar="A,B", help=f"{text}; {NO_LIMIT}: any")
        action.add_argument("--expires", metavar="WHEN", help="30d, or 2027-01-01 (UTC), or none")
    rotate.add_argument(
        "--overlap",
        metavar="WHEN",
        default=_DEFAULT_OVERLAP,
        help="until when the present secret works too: 24h, 2027-01-01, or 0s for no longer; default: %(default)s",
    )
    for action in (create, change, rotate, revoke):
        action.add_dry_run()
    for action in (create, rotate, change):
        add_second_operator(action)
    listing = add_work(parser, "list", "keys by tenant and project, without secrets", elsewhere.list_keys)
    listing.add_argument("--tenant", help="of one tenant alone")
    listing.add_format("json")
