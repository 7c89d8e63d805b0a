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

    def project(self, tenant_id: UUID, project_id: UUID, partition: str = "") -> Scope:
        """The scope of one project, or of a `partition` of it, as the client calls it: whoever has the project's root
        and data key has those of its partitions, and nobody has them when these are destroyed."""
        domain = ("project", str(tenant_id), str(project_id))
        scope = self._scope(domain)
        return self._partition(scope, (*domain, partition)) if partition else scope

    def segments(
        self, tenant_id: UUID, project_id: UUID, tokens: int, partition: str = ""
    ) -> tuple[tuple[Segment, ...], tuple[Scope, ...]]:
        """The segments of a prompt of `tokens` tokens by scope, and these scopes."""
        scope = self.project(tenant_id, project_id, partition)
        return (Segment(tokens, scope.scope),), (scope,)

    def _scope(self, domain: tuple[str, ...]) -> Scope:
        made = self._made.get(domain)
        if made is None:
            root = scope_root(self._scope_secret, domain)
            data_key = hmac.new(self._master_key, b"turnpike/data-key/v1" + root, hashlib.sha256).digest()
            made = self._remember(domain, Scope(_name(root), root, data_key))
        return made

    def _partition(self, whole: Scope, domain: tuple[str, ...]) -> Scope:
        made = self._made.get(domain)
        if made is None:
            root = scope_root(whole.root, ("partition", domain[-1]))
            data_key = hmac.new(whole.data_key, b"turnpike/partition-key/v1" + root, hashlib.sha256).digest()
            made = self._remember(domain, Scope(_name(root), root, data_key, whole.limits, whole.retention))
        return made

    def _remember(self, domain: tuple[str, ...], scope: Scope) -> Scope:
        if len(self._made) >= _REMEMBERED:
            self._made.clear()
        self._made[domain] = scope
        return scope


def _name(root: bytes) -> str:
    """What a replica calls a scope: it tells nothing of the domain."""
    return hashlib.sha256(b"turnpike/scope-name/v1" + root).hexdigest()[:32]
