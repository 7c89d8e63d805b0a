"""How a link opens: the replica says `Hello` with a challenge, the gateway answers `Dial` with its proof.

The replica listens on a Unix or TCP socket; each gateway worker dials it, and until its proof is right the replica
accepts nothing else. Both sides speak the lower of the two protocol versions, and refuse one older than
`OLDEST_VERSION`.
"""

from __future__ import annotations

import hashlib
import hmac

from engine.protocol.frames import ProtocolError

VERSION = 6
OLDEST_VERSION = 1


def link_proof(link_key: bytes, challenge: bytes, gateway: str) -> bytes:
    """What a gateway answers to a replica's challenge: HMAC-SHA256 under the key that both were given."""
    return hmac.new(link_key, b"turnpike/link/v1\0" + challenge + gateway.encode(), hashlib.sha256).digest()


def agree_version(version: int, oldest: int) -> int:
    """The protocol version to speak with a peer that knows `oldest`..`version`. Raises ProtocolError if none."""
    common = min(VERSION, version)
    if common < max(OLDEST_VERSION, oldest):
        raise ProtocolError(f"no common protocol version: ours {OLDEST_VERSION}..{VERSION}, theirs {oldest}..{version}")
    return common
