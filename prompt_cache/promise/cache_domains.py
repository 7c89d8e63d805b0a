"""Cache domains: which requests may read the KV of a prompt. By default those of the same project alone (C1)."""

from __future__ import annotations

import hashlib
import hmac
from uuid import UUID

from prompt_cache.kv.block_keys import scope_root
from protocol.replicas import Scope
from protocol.requests import Segment

_REMEMBERED = 10_000


class CacheDomains:
    """Makes scopes from the server's secrets. A replica gets a scope's root, its data key and an opaque name."""

    def __init__(self, scope_secret: bytes, master_key: bytes) -> None:
        self._scope_secret = scope_secret
        self._master_key = master_key
        self._made: dict[tuple[str, ...], Scope] = {}

    def project(self, tenant_id: UUID, project_id: UUID) -> Scope:
        """The scope of one project."""
        return self._scope(("project", str(tenant_id), str(project_id)))

    def segments(self, tenant_id: UUID, project_id: UUID, tokens: int) -> tuple[tuple[Segment, ...], tuple[Scope, ...]]:
        """The segments of a prompt of `tokens` tokens by scope, and these scopes."""
        scope = self.project(tenant_id, project_id)
        return (Segment(tokens, scope.scope),), (scope,)

    def _scope(self, domain: tuple[str, ...]) -> Scope:
        made = self._made.get(domain)
        if made is None:
            if len(self._made) >= _REMEMBERED:
                self._made.clear()
            root = scope_root(self._scope_secret, domain)
            name = hashlib.sha256(b"turnpike/scope-name/v1" + root).hexdigest()[:32]
            data_key = hmac.new(self._master_key, b"turnpike/data-key/v1" + root, hashlib.sha256).digest()
            made = self._made[domain] = Scope(name, root, data_key)
        return made
