"""The audit of leases: each against itself, and against the usage event of the request that paid for it."""

from __future__ import annotations

from billing.usage import LEASE_CLASSES
from billing.verification.events import PaidPrompt, read_paid_prompts
from billing.verification.findings import Finding
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.promise.lease_decisions import BLOCK_NAME, LIFE_S, Lease
from prompt_cache.promise.lease_rows import read_leases
from prompt_cache.promise.lease_storage import MOST_WAIT
from storage.database.database import Database

_SECOND = 1_000_000


async def audit_leases(database: Database) -> list[Finding]:
    """The leases that contradict themselves or what was paid for them. Running requests cause no finding. Raises
    DatabaseUnavailable."""
    findings = []
    async with database.reading() as session:
        now = await database.now_in(session)
        async for page in read_leases(session):
            prompts = await read_paid_prompts(database, session, {one.writer for one in page if one.paid})
            for one in page:
                wrong = _describe_contradiction(one, now)
                if wrong is None and one.paid:
                    wrong = _describe_difference(one, prompts.get(one.writer), now)
                if wrong is not None:
                    findings.append(Finding("a lease is not what was paid for", one.tenant_id, f"{one.id}: {wrong}"))
    return findings


def _describe_contradiction(one: Lease, now: int) -> str | None:
    """What is wrong in a lease's row, as it was at `now`; None if nothing is.

    A lease ends when its class has lived since it was written, last read or otherwise used, which was before now.
    """
    if one.lease_class not in LIFE_S:
        return f"there is no class {one.lease_class}"
    life = LIFE_S[one.lease_class] * _SECOND
    last = max(one.created_at, one.read_at or 0)
    if not last + life <= one.expires_at <= now + life:
        return f"of class {one.lease_class} and used at {last}, it does not end at {one.expires_at}"
    if one.blocks and len(one.blocks) != one.tokens // BLOCK_TOKENS * BLOCK_NAME:
        return f"its {one.tokens} tokens do not have {len(one.blocks) // BLOCK_NAME} blocks"
    if not 0 < one.new_tokens <= one.tokens:
        return f"of its {one.tokens} tokens {one.new_tokens} are new"
    return None


def _describe_difference(one: Lease, paid: PaidPrompt | None, now: int) -> str | None:
    """How a lease differs from what its writer paid. An event may come long after its request has ended."""
    if paid is None:
        return f"no usage of {one.writer} paid for it" if one.created_at + MOST_WAIT < now else None
    owner = (paid.tenant_id, paid.project_id, paid.model, paid.admitted_at)
    if owner != (one.tenant_id, one.project_id, one.model, one.created_at):
        return f"{one.writer}, which paid for it, is of another owner, model or instant"
    name = paid.paid_class(one.tokens)
    if name is None:
        return f"{one.writer} did not write its token {one.tokens}"
    if LEASE_CLASSES.index(name) < LEASE_CLASSES.index(one.lease_class):
        return f"it is of class {one.lease_class}, {one.writer} paid for {name}"
    return None
