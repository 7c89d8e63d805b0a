"""Every operation of the document, called by everybody with everybody's ids: 401, 403 or 404, and never data.

The calls are generated from the document and the proofs of this folder. An operation without a proof fails, and a proof
counts only if the operation first answers 2xx to whom the object belongs.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing.prices import PriceCatalog
from billing.usage import LEASE_CLASSES
from gateway.app import application_of
from gateway.http.policies import ADMIN_PATH
from gateway.openapi.document import make_document, operations_of
from gateway.openapi.stand_in import stand_in
from storage.database.database import Database
from tenancy.permissions import PLATFORM_ONLY
from tests.gateway.access.all_proofs import PROOFS
from tests.gateway.access.proofs import Call, Proof
from tests.gateway.access.world import Caller, Place, World, bearer
from tests.gateway.stack import PRICES, running_stack

REFUSED = (401, 403, 404)
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
            return "operator_key" if self.permission in PLATFORM_ONLY else "admin_key"
        return "project_key" if "project_key" in self.principals else "admin_key"

    def url(self, path: Mapping[str, Any]) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: str(path[match[1]]), self.path)


def operations(document: Mapping[str, Any]) -> list[Operation]:
    return [
        Operation(method, path, written, PROOFS[written["operationId"]])
        for method, path, written in operations_of(document)
        if written["operationId"] in PROOFS
    ]


@pytest.fixture
async def world(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[World]:
    database = await Database.open(stocked_sqlite_url)
    await PriceCatalog(database).set("tiny", "USD", PRICES | _LEASES)
    await database.close()
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        yield await World.around(stack)


def test_every_operation_has_a_proof() -> None:
    document = make_document(application_of(stand_in()))
    written = {operation["operationId"] for _, _, operation in operations_of(document)}
    assert sorted(written - PROOFS.keys()) == [], "write their proofs: see tests/gateway/access/proofs.py"
    assert sorted(PROOFS.keys() - written) == [], "there are no such operations"


async def ask(world: World, operation: Operation, call: Call, headers: Mapping[str, str]) -> httpx.Response:
    return await world.call(
        operation.method, operation.url(call.path), {**call.headers, **headers}, call.query, call.body
    )


def told(answer: httpx.Response, call: Call) -> list[str]:
    """What the answer tells of what is only its owner's."""
    return [text for text in call.tells if text in answer.text]


def refusal_problem(answer: httpx.Response, allowed: tuple[int, ...] = REFUSED) -> str:
    """What is wrong with an answer that must refuse; nothing if all is well."""
    if answer.status_code not in allowed:
        return f"{answer.status_code}: {answer.text[:200]}"
    body = answer.json()
    if set(body) - {"error", "type", "request_id"}:
        return f"{answer.status_code} with data: {answer.text[:200]}"
    return ""


async def test_ids_of_others_answer_like_ids_that_never_were(world: World) -> None:
    problems: list[str] = []
    for operation in operations(world.document):
        owner = bearer(world.a1.keys[operation.owner])
        own = await operation.proof.make(world, world.a1)
        for what, path in await _foreign_paths(world, operation, own):
            answer = await ask(world, operation, Call(path, own.query, own.body, own.headers), owner)
            allowed = REFUSED if operation.path.startswith(ADMIN_PATH) else (404,)
            if problem := refusal_problem(answer, allowed):
                problems.append(f"{operation.id} with {what}: {problem}")
        answer = await ask(world, operation, own, {} if operation.public else owner)
        if not answer.is_success:
            problems.append(f"{operation.id}: its owner gets {answer.status_code}: {answer.text[:300]}")
        elif operation.method == "GET" and len(told(answer, own)) < len(own.tells):
            problems.append(f"{operation.id}: its owner is not told {own.tells}: {answer.text[:300]}")
    assert not problems, "\n".join(problems)


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
    gone = await _deleted(world, operation)
    if gone is not None:
        found.append(("a deleted object", dict(gone)))
    return [(what, path) for what, path in found if path != own.path]


def _random(value: Any) -> Any:
    """An id of the same form that nothing has."""
    if isinstance(value, int):
        return 1_000_000_007
    digits = re.sub(r"[0-9a-f]{8,}", lambda match: "".join(random.choices("0123456789abcdef", k=len(match[0]))), value)
    return digits if digits != value else f"{value}-of-nobody"


async def _deleted(world: World, operation: Operation) -> Mapping[str, Any] | None:
    """The path of an object that its owner deleted, where there is an operation for that."""
    written = world.document["paths"]
    deleting = next(
        (one for one in operations(world.document) if one.method == "DELETE" and operation.path.startswith(one.path)),
        None,
    )
    if deleting is None or "{" not in deleting.path or deleting.path not in written:
        return None
    call = await operation.proof.make(world, world.a1)
    answer = await ask(world, deleting, Call(call.path), bearer(world.a1.keys[deleting.owner]))
    assert answer.is_success, f"{deleting.id}: {answer.text}"
    return call.path


async def test_nobody_else_gets_data(world: World) -> None:
    problems: list[str] = []
    for operation in operations(world.document):
        if operation.public:
            continue
        call = await operation.proof.make(world, world.a1)
        for caller in world.callers:
            safe = operation.method == "GET"
            may = _may(operation, caller, world.a1)
            if may and not safe:
                continue  # it would change what the next caller is refused
            answer = await ask(world, operation, call, caller.headers)
            problems += [
                f"{operation.id} by {caller.name}: {text}" for text in _problems(operation, call, caller, answer, may)
            ]
    assert not problems, "\n".join(problems)


def _may(operation: Operation, caller: Caller, place: Place) -> bool:
    """Whether the caller may do this in this place, as the document and the matrix of roles have it."""
    if caller.principal is None:
        return operation.keyless and not caller.headers
    if caller.principal.kind not in operation.principals:
        return False
    if operation.permission is None:
        return True
    return caller.principal.may(operation.permission, place.tenant_id, place.project_id)


def _problems(operation: Operation, call: Call, caller: Caller, answer: httpx.Response, may: bool) -> Iterator[str]:
    if may:
        if answer.status_code in REFUSED and not operation.proof.quiet:
            yield f"may, but gets {answer.status_code}: {answer.text[:200]}"
        return
    if caller.principal is None:
        wrong = operation.keyless and not caller.headers
        if not wrong and (problem := refusal_problem(answer, (401,))):
            yield problem
        return
    anywhere = operation.permission is None or caller.principal.may_anywhere(operation.permission)
    if caller.principal.kind not in operation.principals or not anywhere:
        if problem := refusal_problem(answer, (403,)):
            yield problem
    elif call.path and set(call.path) - call.shared:
        if problem := refusal_problem(answer):
            yield problem
    elif told(answer, call):
        yield f"is told {told(answer, call)}: {json.dumps(answer.text[:200])}"
