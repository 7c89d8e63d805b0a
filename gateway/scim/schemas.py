"""What a SCIM client may ask and say: schemas, resource types, and what the service can do, as RFC 7643 writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CORE = "urn:ietf:params:scim:schemas:core:2.0"
MESSAGES = "urn:ietf:params:scim:api:messages:2.0"
USER, GROUP = f"{CORE}:User", f"{CORE}:Group"
MOST_RESULTS = 200


def _attribute(name: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "multiValued": False,
        "description": more.pop("description", name),
        "required": False,
        "mutability": "readWrite",
        "returned": "default",
        **({"caseExact": False, "uniqueness": "none"} if kind in ("string", "reference") else {}),
        **more,
    }


SCHEMAS: tuple[Mapping[str, Any], ...] = (
    {
        "schemas": [f"{CORE}:Schema"],
        "id": USER,
        "name": "User",
        "description": "A person who may come in.",
        "attributes": [
            _attribute("userName", required=True, uniqueness="server", description="Unique in the directory."),
            _attribute(
                "name",
                "complex",
                subAttributes=[_attribute("formatted"), _attribute("familyName"), _attribute("givenName")],
            ),
            _attribute("displayName"),
            _attribute("title"),
            _attribute("active", "boolean", description="Who is not active has left the tenant."),
            _attribute(
                "emails",
                "complex",
                multiValued=True,
                subAttributes=[_attribute("value"), _attribute("type"), _attribute("primary", "boolean")],
            ),
            _attribute(
                "groups",
                "complex",
                multiValued=True,
                mutability="readOnly",
                subAttributes=[
                    _attribute("value", mutability="readOnly"),
                    _attribute("$ref", "reference", mutability="readOnly", referenceTypes=["Group"], caseExact=True),
                    _attribute("display", mutability="readOnly"),
                ],
            ),
        ],
    },
    {
        "schemas": [f"{CORE}:Schema"],
        "id": GROUP,
        "name": "Group",
        "description": "A group of people. Which role it gives is said in the console.",
        "attributes": [
            _attribute("displayName", required=True, uniqueness="server"),
            _attribute(
                "members",
                "complex",
                multiValued=True,
                subAttributes=[
                    _attribute("value", mutability="immutable"),
                    _attribute("$ref", "reference", mutability="immutable", referenceTypes=["User"], caseExact=True),
                ],
            ),
        ],
    },
)
RESOURCE_TYPES: tuple[Mapping[str, Any], ...] = tuple(
    {
        "schemas": [f"{CORE}:ResourceType"],
        "id": name,
        "name": name,
        "endpoint": f"/{name}s",
        "description": name,
        "schema": schema,
    }
    for name, schema in (("User", USER), ("Group", GROUP))
)
CONFIG: Mapping[str, Any] = {
    "schemas": [f"{CORE}:ServiceProviderConfig"],
    "patch": {"supported": True},
    "bulk": {"supported": False, "maxOperations": 0, "maxPayloadSize": 0},
    "filter": {"supported": True, "maxResults": MOST_RESULTS},
    "changePassword": {"supported": False},
    "sort": {"supported": False},
    "etag": {"supported": False},
    "authenticationSchemes": [
        {
            "type": "oauthbearertoken",
            "name": "Bearer token",
            "description": "The token of the tenant's directory.",
            "primary": True,
        }
    ],
}


def attribute_names(schema: str) -> dict[str, str]:
    """The attributes of a resource, by their names in lower case; externalId is one of each."""
    named = next(one for one in SCHEMAS if one["id"] == schema)
    return {each["name"].lower(): each["name"] for each in named["attributes"]} | {"externalid": "externalId"}


def sub_attribute_names(schema: str, attribute: str) -> dict[str, str]:
    """The parts of an attribute, by their names in lower case; none of a simple one."""
    named = next(one for one in SCHEMAS if one["id"] == schema)
    found: Mapping[str, Any] = next((one for one in named["attributes"] if one["name"] == attribute), {})
    return {each["name"].lower(): each["name"] for each in found.get("subAttributes", ())}


MULTI_VALUED = frozenset({"emails", "members", "groups"})
READ_ONLY = frozenset({"groups"})
