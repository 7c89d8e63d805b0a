"""Cache domains: which requests may read the KV of a prompt. By default those of the same project alone (C1)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

import structlog

from prompt_cache.kv.block_keys import scope_root
from prompt_cache.promise.scope_keys import ProjectKey, ScopeKeys, ScopeKeyUnreadable
from prompt_cache.promise.shared_prefixes import SharedPrefixes
from protocol.replicas import Scope, TierLimit
from protocol.requests import Segment
from storage.database.database import DatabaseUnavailable

log = structlog.get_logger("prompt_cache.domains")

_REMEMBERED = 10_000


class CacheDomains:
    """Makes scopes from the server's secrets. A replica gets a scope's root, its data key and an opaque name.

    `keys`: the projects' data keys; without them, and for a project whose key is not in memory, a scope has no
    retention: its blocks never leave the device. `retention`: seconds that KV may lie in DRAM and on disk where the
    project says nothing else; `limits`: likewise its reserve and limit by tier. `shared`: prefixes that are shared
    beyond a project, each in a scope of its own.
    """

    def __init__(
        self,
        scope_secret: bytes,
        keys: ScopeKeys | None = None,
        *,
        retention: float = 0.0,
        limits: Sequence[TierLimit] = (),
        shared: SharedPrefixes | None = None,
    ) -> None:
        self._scope_secret = scope_secret
        self._keys = keys
        self._retention, self._limits = retention, tuple(limits)
        self.shared = shared
        self._roots: dict[tuple[str, ...], bytes] = {}
        self._made: dict[UUID, tuple[ProjectKey | None, Scope]] = {}
        self._partitions: dict[tuple[str, str], tuple[Scope, Scope]] = {}
        """(project's scope, partition) -> that scope, and the partition's."""

    def ready(self, project_id: UUID) -> bool:
        """Whether `prepare` has nothing to do for this project."""
        return self._keys is None or self._keys.known(project_id) is not None

    async def prepare(self, tenant_id: UUID, project_id: UUID) -> None:
        """Get the project's data key into memory, before a request of it is sent. Raises nothing: without its key the
        request runs all the same, and its blocks stay on the device."""
        if self._keys is None:
            return
        try:
            await self._keys.load(tenant_id, project_id)
        except DatabaseUnavailable:
            log.warning("a project's KV stays on the device: its data key is in a database that is away")
        except ScopeKeyUnreadable as error:
            log.error("a project's KV stays on the device", cause=str(error))

    def root(self, tenant_id: UUID, project_id: UUID) -> bytes:
        """The root of the project's block keys. It outlives the data key."""
        return self._root(("project", str(tenant_id), str(project_id)))

    def project(self, tenant_id: UUID, project_id: UUID, partition: str = "") -> Scope:
        """The scope of one project, or of a `partition` of it, as the client calls it. A partition has the project's
        data key, and a root that is derived from the project's: it ends when these are destroyed."""
        scope = self._project(tenant_id, project_id)
        return self._partition(scope, partition) if partition else scope

    def _project(self, tenant_id: UUID, project_id: UUID) -> Scope:
        key = None if self._keys is None else self._keys.known(project_id)
        made = self._made.get(project_id)
        if made is not None and made[0] is key:
            return made[1]
        if len(self._made) >= _REMEMBERED:
            self._made.clear()
        root = self.root(tenant_id, project_id)
        if key is None:
            scope = Scope(scope_name(root), root, b"")
        else:
            retention = self._retention if key.retention is None else key.retention
            name = scope_name(root, key.generation)
            scope = Scope(name, root, key.derive(root), key.limits or self._limits, float(retention))
        self._made[project_id] = (key, scope)
        return scope

    def name(self, tenant_id: UUID, project_id: UUID, generation: int) -> str:
        """The name of the project's scope while its data key is of this generation."""
        return scope_name(self.root(tenant_id, project_id), generation)

    def segments(
        self, tenant_id: UUID, project_id: UUID, tokens: int, partition: str = ""
    ) -> tuple[tuple[Segment, ...], tuple[Scope, ...]]:
        """The segments of a prompt of `tokens` tokens by scope, and these scopes."""
        scope = self.project(tenant_id, project_id, partition)
        return (Segment(tokens, scope.scope),), (scope,)

    def prompt_segments(
        self, tenant_id: UUID, project_id: UUID, model: tuple[str, str], tokens: Sequence[int], partition: str = ""
    ) -> tuple[tuple[Segment, ...], tuple[Scope, ...]]:
        """The segments of this prompt for a `model` (name, text digest), what is shared of it first. A partition shares
        nothing."""
        own, scopes = self.segments(tenant_id, project_id, len(tokens), partition)
        if self.shared is None or partition:
            return own, scopes
        shared = self.shared.of_prompt(tenant_id, model, tokens)
        begin = tuple((one.tokens, self._project(one.tenant_id, one.id)) for one in shared)
        segments = tuple(Segment(until, scope.scope) for until, scope in begin if until < len(tokens))
        return (*segments, *own), (*(scope for until, scope in begin if until < len(tokens)), *scopes)

    def _partition(self, whole: Scope, partition: str) -> Scope:
        made = self._partitions.get((whole.scope, partition))
        if made is None or made[0] is not whole:
            if len(self._partitions) >= _REMEMBERED:
                self._partitions.clear()
            root = scope_root(whole.root, ("partition", partition))
            name = f"{whole.scope}/{scope_name(root)}"  # replicas count it with the whole (`owner_of`)
            scope = Scope(name, root, whole.data_key, whole.limits, whole.retention)
            made = self._partitions[whole.scope, partition] = (whole, scope)
        return made[1]

    def _root(self, domain: tuple[str, ...]) -> bytes:
        root = self._roots.get(domain)
        if root is None:
            if len(self._roots) >= _REMEMBERED:
                self._roots.clear()
            root = self._roots[domain] = scope_root(self._scope_secret, domain)
        return root


def scope_name(root: bytes, generation: int = 1) -> str:
    """What replicas call the scope with this root. Another generation of its data key is another name, so that a late
    `Forget` of the old one leaves the new one alone."""
    first = b"" if generation == 1 else generation.to_bytes(8, "big")
    return hashlib.sha256(b"turnpike/scope-name/v1" + root + first).hexdigest()[:32]
