"""Taking in an adapter that somebody uploads, and removing one: for a project's key, and for a tenant's people.

A process of its own checks what came; what is refused leaves nothing. A gateway that dies meanwhile leaves a blob that
no row names, which the worker removes after a day, and room that is kept for an hour.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from litestar import Request

from file_store.adapters import AdapterStore, NameTaken, StoredAdapter
from file_store.sealed_content import ContentWriter
from gateway.adapters.adapted_models import wire_name
from gateway.adapters.checking import AdapterCheck
from gateway.admission.prepared_request import Payer
from gateway.endpoints.files import announced, room_for, storage_full
from gateway.errors import BodyTooLarge, Conflict, InvalidField, ModelNotFound, NotAllowed, NotFound
from gateway.http.multipart_body import Form, read_form
from gateway.served_models.served_model import ServedModel
from gateway.services import Gateway
from model_files.adapter_config import MOST_CONFIG_BYTES
from model_files.adapter_file import MOST_BYTES, trailer
from storage.database.public_ids import prefixed_id

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_YES_OR_NO = {"true": True, "false": False}


def adapter_store(gateway: Gateway) -> AdapterStore:
    """The gateway's adapters. Raises NotFound where there are none."""
    if gateway.adapters is None:
        raise NotFound("This gateway keeps no adapters.")
    return gateway.adapters


def adapter_id(name: str) -> UUID:
    """The id that a public one stands for. Raises NotFound."""
    found = prefixed_id(name, "adapter_")
    if found is None:
        raise unknown_adapter(name)
    return found


def unknown_adapter(name: str) -> NotFound:
    """The error for an adapter that is not there, or not the project's."""
    return NotFound(f"There is no adapter {name[:80]!r}.", path="adapter_id")


async def upload_adapter(gateway: Gateway, payer: Payer, request: Request[Any, Any, Any]) -> StoredAdapter:
    """Read the form of an upload, seal its content, have it checked, and keep it, unless the form says that it is only
    to be checked: then it has no `created_at`. Raises what keeps it from that."""
    async with gateway.adapter_checks:
        return await _uploaded(gateway, payer, request)


async def remove_adapter(gateway: Gateway, adapter: StoredAdapter) -> bool:
    """Delete an adapter; replicas drop it. False if it is not there any more. Raises DatabaseUnavailable, OSError."""
    store = adapter_store(gateway)
    owner = adapter.tenant_id, adapter.project_id
    if await store.delete(*owner, adapter.id) is None:
        return False
    fleet = getattr(gateway.services, "fleet", None)  # a command on the data folder has none: its slot is reused
    if fleet is not None and not await store.has_digest(*owner, adapter.digest):
        fleet.drop_adapter(adapter.model, wire_name(adapter))
    return True


def _bounded(writer: ContentWriter, left: int) -> Callable[[bytes], Any]:
    async def take(content: bytes) -> None:
        if writer.size + len(content) > left:
            raise storage_full("file")
        if writer.size + len(content) > MOST_BYTES:
            raise BodyTooLarge(f"An adapter may have at most {MOST_BYTES} bytes.")
        await writer.append(content)

    return take


def _fields(gateway: Gateway, payer: Payer, form: Form) -> tuple[ServedModel, str, bytes, bool]:
    """The served model, the name and the configuration in a form, and whether it is only to be checked. Raises
    InvalidField, ModelNotFound, NotAllowed."""
    texts = dict(form.texts)
    if form.filename is None:
        raise InvalidField("file", "it is missing", code="missing_required_parameter")
    taken = {}
    for field in ("model", "name", "config"):
        if field not in texts:
            raise InvalidField(field, "it is missing", code="missing_required_parameter")
        taken[field] = texts.pop(field)
    dry_run = _YES_OR_NO.get(texts.pop("dry_run", "false"))
    if dry_run is None:
        raise InvalidField("dry_run", "it must be true or false")
    if texts:
        raise InvalidField(next(iter(texts))[:80], "there is no such field", code="unknown_parameter")
    model = gateway.services.models.find(taken["model"])
    if model is None:
        raise ModelNotFound(f"The model {taken['model'][:80]!r} does not exist.", path="model")
    payer.check(model.name)
    if not _NAME.fullmatch(taken["name"]):
        raise InvalidField("name", "it must be 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first")
    return model, taken["name"], taken["config"].encode(), dry_run


async def _uploaded(gateway: Gateway, payer: Payer, request: Request[Any, Any, Any]) -> StoredAdapter:
    store, wait = adapter_store(gateway), gateway.questions.wait
    if not await gateway.response_keeper.keeps_content(payer):
        raise NotAllowed("This project keeps nothing of its content, so no adapters.", code="content_not_kept")
    async with room_for(gateway, payer, "file", *announced(request, MOST_BYTES)) as room:
        id_, writer = await wait(store.files.begin(payer.tenant_id, payer.project_id, room))
        try:
            silent_s = gateway.services.options.client_timeout
            form = await read_form(request, silent_s, _bounded(writer, room.bytes), most_text=MOST_CONFIG_BYTES)
            model, name, config, dry_run = _fields(gateway, payer, form)
            await writer.append(trailer(config))
            await writer.commit()
        except BaseException:
            await writer.discard()
            raise
        try:
            new = await _checked(store, payer, model, name, (id_, writer.size))
            if not dry_run:
                return await wait(store.save(new))
            if await wait(store.named(payer.tenant_id, payer.project_id, model.name, name)) is not None:
                raise NameTaken
        except BaseException as error:
            await store.files.discard(id_)
            if isinstance(error, NameTaken):
                problem = f"The project has an adapter of {model.name!r} named {name!r}; delete it first."
                raise Conflict(problem, path="name") from error
            raise
        await store.files.discard(id_)
        return new


async def _checked(
    store: AdapterStore, payer: Payer, model: ServedModel, name: str, written: tuple[UUID, int]
) -> StoredAdapter:
    """What there is to say of an adapter whose content is `written`: its id and bytes. Raises InvalidField,
    Unavailable."""
    id_, size = written
    check = await AdapterCheck.begin(model.text_digest, model.folder)
    try:
        reader = await store.reader(payer.tenant_id, payer.project_id, id_, size)
        async for piece in reader.pieces():
            await check.take(piece)
        digest, facts = await check.verdict()
    finally:
        await check.end()
    return StoredAdapter(
        id=id_,
        tenant_id=payer.tenant_id,
        project_id=payer.project_id,
        model=model.name,
        name=name,
        digest=digest,
        facts=facts,
        bytes=size,
        created_at=0,
    )
