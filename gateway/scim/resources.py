"""People and groups of a directory as SCIM resources, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from gateway.scim.expressions import Resource, ScimRefused
from gateway.scim.schemas import GROUP, MESSAGES, USER, attribute_names, sub_attribute_names
from storage.database.base import from_instant
from storage.free_text import problem_of_text
from tenancy.identity.directory_people import Group, Person, PersonFields

_MOST_TEXT, _MOST_EMAILS, _MOST_MEMBERS = 500, 20, 10_000
_TEXTS = ("displayName", "title")


def person_fields(resource: Mapping[str, Any]) -> PersonFields:
    """What a User resource says. Raises ScimRefused."""
    said = _known(resource, USER)
    user_name = _text(said, "userName", required=True)
    content: Resource = {name: _text(said, name) for name in _TEXTS if said.get(name) is not None}
    active = _boolean(said.get("active", True))
    if "active" in said:
        content["active"] = active
    if isinstance(said.get("name"), dict):
        inner = _parts(said["name"], USER, "name")
        content["name"] = {part: _text(inner, part) for part in inner if inner[part] is not None}
    emails = said.get("emails") or []
    if not isinstance(emails, list) or len(emails) > _MOST_EMAILS:
        raise ScimRefused(400, f"emails: a list of {_MOST_EMAILS} at most", "invalidValue")
    content["emails"] = [_email(one) for one in emails]
    primary = [one for one in content["emails"] if one.get("primary")] or content["emails"]
    return PersonFields(
        user_name=user_name,
        external_id=_text(said, "externalId"),
        email=primary[0].get("value", "") if primary else "",
        active=active,
        content={name: value for name, value in content.items() if value not in ([], {})},
    )


def person_resource(person: Person, base: str) -> Resource:
    """A person as a User resource. `base`: the URL of the SCIM service."""
    resource: Resource = {"schemas": [USER], "id": str(person.id), **person.content}
    if person.external_id:
        resource["externalId"] = person.external_id
    if person.groups:
        resource["groups"] = [
            {"value": str(group_id), "$ref": f"{base}/Groups/{group_id}", "display": name}
            for group_id, name in person.groups
        ]
    return {**resource, "meta": _meta("User", person, f"{base}/Users/{person.id}")}


def group_fields(resource: Mapping[str, Any]) -> tuple[str, str, list[UUID]]:
    """The name, the external id and the members that a Group resource says. Raises ScimRefused."""
    said = _known(resource, GROUP)
    members = said.get("members") or []
    if not isinstance(members, list) or len(members) > _MOST_MEMBERS:
        raise ScimRefused(400, f"members: a list of {_MOST_MEMBERS} at most", "invalidValue")
    return _text(said, "displayName", required=True), _text(said, "externalId"), [_member(one) for one in members]


def group_resource(group: Group, base: str) -> Resource:
    """A group as a Group resource."""
    resource: Resource = {"schemas": [GROUP], "id": str(group.id), "displayName": group.name}
    if group.external_id:
        resource["externalId"] = group.external_id
    if group.members:
        resource["members"] = [{"value": str(member), "$ref": f"{base}/Users/{member}"} for member, _ in group.members]
    return {**resource, "meta": _meta("Group", group, f"{base}/Groups/{group.id}")}


def list_response(resources: list[Resource], total: int, start: int) -> Resource:
    """A page of resources. `start`: the first one's number, from 1."""
    return {
        "schemas": [f"{MESSAGES}:ListResponse"],
        "totalResults": total,
        "startIndex": start,
        "itemsPerPage": len(resources),
        "Resources": resources,
    }


def _known(resource: Mapping[str, Any], schema: str) -> Resource:
    """The attributes that are kept, by their own names: names are of any case, and others are left out."""
    names = attribute_names(schema)
    return {names[name.lower()]: value for name, value in resource.items() if name.lower() in names}


def _parts(value: Mapping[str, Any], schema: str, attribute: str) -> Resource:
    names = sub_attribute_names(schema, attribute)
    return {names[name.lower()]: inner for name, inner in value.items() if name.lower() in names}


def _text(said: Mapping[str, Any], name: str, *, required: bool = False) -> str:
    value = said.get(name)
    text = "" if value is None else value
    if not isinstance(text, str):
        raise ScimRefused(400, f"{name}: not a text", "invalidValue")
    if problem := problem_of_text(text, _MOST_TEXT, empty=not required):
        raise ScimRefused(400, f"{name}: {problem}", "invalidValue")
    return text


def _boolean(value: Any) -> bool:
    """A boolean, also as the text that Entra sends. Raises ScimRefused."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ScimRefused(400, "active: not a boolean", "invalidValue")
    return value


def _email(one: Any) -> Resource:
    if not isinstance(one, dict):
        raise ScimRefused(400, "emails: each is an object", "invalidValue")
    parts = _parts(one, USER, "emails")
    email: Resource = {name: _text(parts, name) for name in ("value", "type") if parts.get(name) is not None}
    if parts.get("primary") is not None:
        email["primary"] = _boolean(parts["primary"])
    return email


def _member(one: Any) -> UUID:
    value = one.get("value") if isinstance(one, dict) else None
    try:
        return UUID(str(value))
    except ValueError as error:
        raise ScimRefused(400, f"members: {str(value)[:80]!r} is nobody's id", "invalidValue") from error


def _meta(kind: str, one: Person | Group, location: str) -> Resource:
    created, changed = from_instant(one.created_at).isoformat(), from_instant(one.changed_at).isoformat()
    return {"resourceType": kind, "created": created, "lastModified": changed, "location": location}
