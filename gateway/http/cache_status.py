"""The response header `Cache-Status` (RFC 9211) of a generation: what the cache of prompts did for it.

`hit`: part of the prompt is billed as read; `detail` says how many tokens' KV were found in which tier, which are
fewer than what is billed as read where a lease outlived its KV. `fwd`: nothing is read, because there was nothing
(`uri-miss`), the lease is over or too old (`stale`), or the request asked for that (`bypass`). `stored`: a lease was
written; `collapsed`: another request still computes what is read; `ttl`: seconds for which the longest lease lives;
`key`: its id at /v1/caches.
"""

from __future__ import annotations

import time

from billing.usage import Counts, Usage
from gateway.admission.prepared_request import PreparedRequest
from prompt_cache.promise.lease_decisions import LeaseDecision
from protocol.replicas import TIERS

HEADER = "cache-status"
_SECOND = 1_000_000


def cache_status(prepared: PreparedRequest, usage: Usage | None = None, counts: Counts | None = None) -> str:
    """The header's value for a request that is billed and was counted like this; or, while that is not known, for what
    its leases promise."""
    leases = prepared.leases
    read = any(usage.read.values()) if usage is not None else leases is not None and leases.hit is not None
    parts = ["turnpike"]
    if read:
        parts.append("hit")
    else:
        parts.append(f"fwd={_miss(prepared)}")
    if leases is not None:
        parts += _lease_parts(leases)
    if read and counts is not None:
        tiers = [(tier, getattr(counts, f"read_{tier}")) for tier in TIERS]
        parts.append(f'detail="{",".join(f"{tier}:{tokens}" for tier, tokens in tiers if tokens) or "hbm:0"}"')
    return "; ".join(parts)


def _miss(prepared: PreparedRequest) -> str:
    if prepared.plan.read == "none":
        return "bypass"
    return "stale" if prepared.leases is not None and prepared.leases.stale else "uri-miss"


def _lease_parts(leases: LeaseDecision) -> list[str]:
    parts = []
    if leases.written:
        parts.append("stored")
    if leases.collapsed:
        parts.append("collapsed")
    if leases.expires_at is not None:
        parts.append(f"ttl={max(0, round(leases.expires_at / _SECOND - time.time()))}")
    longest = leases.written[-1] if leases.written else leases.hit
    if longest is not None:
        parts.append(f'key="cache_{longest.id.hex}"')
    return parts
