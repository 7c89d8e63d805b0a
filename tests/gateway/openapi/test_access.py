"""Every operation of the document, called by everybody with everybody's ids: 401, 403 or 404, and never data.

The calls are generated from the document and the proofs of `tests.gateway.access`. An operation without a proof fails,
and a proof counts only if the operation first answers 2xx to whom the object belongs.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from billing.prices import PriceCatalog
from billing.usage import LEASE_CLASSES
from fake_stripe.server import FakeStripe
from gateway.app import application_of
from gateway.dialects.query_parameters import Parameters
from gateway.http.policies import ADMIN_PATH
from gateway.openapi.document import make_document, operations_of
from gateway.openapi.stand_in import stand_in
from storage.database.database import Database
from tests.billing.payments.desk import collecting_by
from tests.gateway.access.all_proofs import PROOFS
from tests.gateway.access.proofs import Call, Proof
from tests.gateway.access.world import Answer, Caller, Place, World, bearer
from tests.gateway.stack import PRICES, running_stack

REFUSED = (401, 403, 404)
STAY = ("admin_revoke_key", "admin_revoke_operator_key")
"""Deletions after which their object is still shown: it is in the books."""
OF_A_PLACE = {"tenant", "project", "project_id"}
"""The parameters of paths that a place has itself."""
_LEASES = {f"{what}_{lease}": price for lease in LEASE_CLASSES for what, price in (("read", "0.04"), ("write", "0.50"))}


class Operation:
    """An operation of the document and its proof."""

    def __init__(self, method: str, path: str, written: Mapping[str, Any], proof: Proof) -> None:
        self.method, self.path, self.written, self.proof = method, path, written, proof
        self.id = str(written["operationId"])
        self.permission = written["x-permission"]
        self.public = not written["security"]
        self.keyless = {} in written["security"]
        self.principals = frozenset(written["x-principals"])

    @property
    def owner(self) -> str:
        """The kind of key that the proof's objects belong to."""
        if self.proof.by is not None:
            return self.proof.by
        if self.path.startswith(ADMIN_PATH):
            only_operators = "operator_key" in self.principals and "admin_key" not in self.principals
            return "operator_key" if only_operators else "admin_key"
        return "project_key" if "project_key" in self.principals else "admin_key"

    def scope(self, place: Place) -> tuple[UUID | None, UUID | None]:
        """The tenant and project that the operation is about, as its path says."""
        if not self.path.startswith(ADMIN_PATH) or "{project" in self.path:
            return place.tenant_id, place.project_id
        return place.tenant_id if "{tenant}" in self.path else None, None

    def url(self, path: Mapping[str, Any]) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: str(path[match[1]]), self.path)


def proof_of(path: str, written: Mapping[str, Any]) -> Proof:
    """The proof of an operation; of one whose path has no other names than those of its place, its own example."""
    given = PROOFS.get(written["operationId"])
    if given is not None:
        return given

    async def make(world: World, place: Place) -> Call:
        body = written.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
        examples = {one["name"]: one["example"] for one in written.get("parameters", ()) if one["in"] == "path"}
        names = examples | {"tenant": place.tenant_name, "project": place.project_name, "project_id": place.project_id}
        return Call({name: value for name, value in names.items() if f"{{{name}}}" in path}, body=body)

    return Proof(make)


def operations(document: Mapping[str, Any]) -> list[Operation]:
    return [
        Operation(method, path, written, proof_of(path, written)) for method, path, written in operations_of(document)
    ]


@pytest.fixture
async def world(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[World]:
    database = await Database.open(stocked_sqlite_url)
    await PriceCatalog(database).set("tiny", "USD", PRICES | _LEASES)
    await database.close()
    async with (
        FakeStripe() as stripe,
        collecting_by(stripe) as provider,
        running_stack(stocked_sqlite_url, tmp_path, model_folder, replicas=2, payments=provider) as stack,
    ):
        stack.replicas[1].script = stack.replica.answer_to  # both say what proofs tell the first to say
        made = await World.around(stack)
        yield made
        await made.close()


def test_every_operation_has_a_proof() -> None:
    document = make_document(application_of(stand_in()))
    written = {operation["operationId"]: path for _, path, operation in operations_of(document)}
    public = {operation["operationId"] for _, _, operation in operations_of(document) if not operation["security"]}
    others = {name for name, path in written.items() if set(re.findall(r"{(\w+)}", path)) - OF_A_PLACE} - public
    proven = PROOFS.keys()
    assert sorted(others - proven) == [], "write their proofs: see tests/gateway/access/proofs.py"
    assert sorted(proven - written.keys()) == [], "there are no such operations"


async def ask(world: World, operation: Operation, call: Call, headers: Mapping[str, str]) -> httpx.Response:
    return await world.call(
        operation.method, operation.url(call.path), {**call.headers, **headers}, call.query, call.body
    )


async def call_of(world: World, operation: Operation, problems: list[str]) -> Call | None:
    """A call of the operation with new objects; None, and a problem, where its proof cannot make them."""
    try:
        return await operation.proof.make(world, world.a1)
    except Exception as error:
        problems.append(f"{operation.id}: its proof fails: {error!r:.300}")
        return None


def told(answer: Answer | httpx.Response, call: Call) -> list[str]:
    """What the answer tells of what is only its owner's."""
    return [text for text in call.tells if text in answer.text]


def refusal_problem(answer: Answer | httpx.Response, allowed: tuple[int, ...] = REFUSED) -> str:
    """What is wrong with an answer that must refuse; nothing if all is well."""
    if answer.status_code not in allowed:
        return f"{answer.status_code}: {answer.text[:200]}"
    body = answer.json()
    if set(body) - {"error", "type", "request_id"}:
        return f"{answer.status_code} with data: {answer.text[:200]}"
    return ""


@pytest.mark.slow
async def test_ids_of_others_answer_like_ids_that_never_were(world: World) -> None:
    problems: list[str] = []
    for operation in operations(world.document):
        if operation.public and operation.id not in PROOFS:
            continue  # it has nobody's objects
        own = await call_of(world, operation, problems)
        if own is None:
            continue
        owner = owner_of(world, operation, own)
        for what, path in await _foreign_paths(world, operation, own):
            answer = await ask(world, operation, Call(path, own.query, own.body, own.headers), owner)
            allowed = REFUSED if operation.path.startswith(ADMIN_PATH) else (404,)
            if problem := refusal_problem(answer, allowed):
                problems.append(f"{operation.id} with {what}: {problem}")
        answer = await ask(world, operation, own, owner)
        if not answer.is_success:
            problems.append(f"{operation.id}: its owner gets {answer.status_code}: {answer.text[:300]}")
        elif operation.method == "GET" and len(told(answer, own)) < len(own.tells):
            problems.append(f"{operation.id}: its owner is not told {own.tells}: {answer.text[:300]}")
    assert not problems, "\n".join(problems)


def owner_of(world: World, operation: Operation, own: Call) -> Mapping[str, str]:
    """The headers of whom the objects of a call belong to."""
    if operation.public:
        return {}
    return own.signed_in if operation.owner == "session" else bearer(world.a1.keys[operation.owner])


async def _foreign_paths(world: World, operation: Operation, own: Call) -> list[tuple[str, dict[str, Any]]]:
    """Paths with ids that are not this owner's: each id alone, and all together."""
    names = [name for name in own.path if name not in own.shared]
    if not names:
        return []
    others = [("another tenant's", world.b1)] if operation.owner != "operator_key" else []
    if operation.owner == "project_key":
        others.append(("another project's", world.a2))
    found = []
    for whose, place in others:
        theirs = await operation.proof.make(world, place)
        found += [(f"{whose} {name}", {**own.path, name: theirs.path[name]}) for name in names]
        found.append((f"{whose} path", {**own.path, **{name: theirs.path[name] for name in names}}))
    found += [(f"a random {name}", {**own.path, name: _random(own.path[name])}) for name in names]
    gone = await _deleted(world, operation, own)
    if gone is not None:
        found.append(("a deleted object", dict(gone)))
    return [(what, path) for what, path in found if path != own.path]


def _random(value: Any) -> Any:
    """An id of the same form that nothing has."""
    if isinstance(value, int):
        return 1_000_000_007
    value = str(value)
    digits = re.sub(r"[0-9a-f]{8,}", lambda match: "".join(random.choices("0123456789abcdef", k=len(match[0]))), value)
    return digits if digits != value else f"{value}-of-nobody"


async def _deleted(world: World, operation: Operation, own: Call) -> Mapping[str, Any] | None:
    """The path of an object that its owner deleted, where there is an operation for that."""
    written = world.document["paths"]
    deleting = next(
        (one for one in operations(world.document) if one.method == "DELETE" and operation.path.startswith(one.path)),
        None,
    )
    if deleting is None or operation.method == "PUT" or "{" not in deleting.path or deleting.path not in written:
        return None
    call = await operation.proof.make(world, world.a1)
    if call.path == own.path or deleting.id in STAY:
        return None
    answer = await ask(world, deleting, Call(call.path), owner_of(world, deleting, call))
    return call.path if answer.is_success else None


@pytest.mark.slow
async def test_nobody_else_gets_data(world: World) -> None:
    problems: list[str] = []
    for number, operation in enumerate(operations(world.document)):
        if operation.public:
            continue
        call = await call_of(world, operation, problems)
        if call is None:
            continue
        for caller in callers_of(world, number):
            safe = operation.method == "GET"
            may = _may(operation, caller, world.a1)
            if may and not safe:
                continue  # it would change what the next caller is refused
            url = operation.url(call.path)
            answer = await world.direct(
                operation.method, url, {**call.headers, **caller.headers}, call.query, call.body
            )
            problems += [
                f"{operation.id} by {caller.name}: {text}"
                for text in _problems(operation, call, caller, answer, may, world.a1)
            ]
    assert not problems, "\n".join(problems)


def callers_of(world: World, number: int) -> list[Caller]:
    """Who calls this operation: everybody whom the gateway knows, nobody, and in turn one whom it must not know. All of
    them with ACCESS_FULL, since keys are checked before the route is looked at."""
    unknown = [caller for caller in world.callers if caller.principal is None]
    turn = unknown if os.environ.get("ACCESS_FULL") else [unknown[0], unknown[1 + number % (len(unknown) - 1)]]
    return [*turn, *(caller for caller in world.callers if caller.principal is not None)]


def _may(operation: Operation, caller: Caller, place: Place) -> bool:
    """Whether the caller may do this in this place, as the document and the matrix of roles have it."""
    if caller.principal is None:
        return operation.keyless and not caller.headers
    if caller.principal.kind == "session" and not operation.path.startswith(ADMIN_PATH):
        return operation.keyless  # a cookie means nothing there
    if caller.principal.kind not in operation.principals:
        return False
    if operation.permission is None:
        return True
    return caller.principal.may(operation.permission, *operation.scope(place))


def _problems(
    operation: Operation, call: Call, caller: Caller, answer: Answer, may: bool, place: Place
) -> Iterator[str]:
    if may:
        if answer.status_code in REFUSED and not operation.proof.quiet:
            yield f"may, but gets {answer.status_code}: {answer.text[:200]}"
        return
    if caller.principal is None:
        wrong = operation.keyless and not caller.headers
        if not wrong and (problem := refusal_problem(answer, (caller.status,))):
            yield problem
        return
    anywhere = operation.permission is None or caller.principal.may_anywhere(operation.permission)
    if caller.principal.kind not in operation.principals or not anywhere:
        # Sessions are presented as keys here; that cookies mean nothing on /v1 is tested with real ones.
        if problem := refusal_problem(answer, (403,)):
            yield problem
    elif caller.principal.may(operation.permission or "usage.read", place.tenant_id, place.project_id):
        return  # it may do this in a part of the place: lists show that part
    elif call.path and set(call.path) - call.shared:
        if problem := refusal_problem(answer):
            yield problem
    elif told(answer, call):
        yield f"is told {told(answer, call)}: {json.dumps(answer.text[:200])}"


@pytest.mark.slow
async def test_query_parameters_are_those_that_handlers_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    refused: set[str] = set()
    reject, reject_unknown = Parameters.reject, Parameters.reject_unknown

    def note_refused(self: Parameters, name: str, why: str) -> None:
        refused.add(name)
        reject(self, name, why)

    def note_read(self: Parameters) -> None:
        read.update(name.removesuffix("[]") for name in self._known - {"beta"})
        reject_unknown(self)

    monkeypatch.setattr(Parameters, "reject", note_refused)
    monkeypatch.setattr(Parameters, "reject_unknown", note_read)
    problems: list[str] = []
    for operation in operations(world.document):
        if operation.method != "GET" or operation.owner == "session":
            continue
        call = await call_of(world, operation, problems)
        if call is None:
            continue
        for names in (read, refused):
            names.clear()
        headers = owner_of(world, operation, call)
        version = any(one["name"] == "anthropic-version" for one in operation.written.get("parameters", ()))
        await ask(world, operation, call, dict(headers) | ({"anthropic-version": "2023-06-01"} if version else {}))
        written = {one["name"] for one in operation.written.get("parameters", ()) if one["in"] == "query"}
        if version and read - refused != written:  # another dialect reads the others
            await ask(world, operation, call, dict(headers))
        if read and read - refused != written:
            problems.append(f"{operation.id}: reads {sorted(read - refused - written)}, says {sorted(written - read)}")
    assert not problems, "\n".join(problems)
