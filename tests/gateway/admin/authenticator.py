"""An authenticator in software (WebAuthn): makes passkeys and signs with them, rightly or not."""

from __future__ import annotations

import base64
import json
import secrets
from hashlib import sha256
from typing import Any

import cbor2
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

_PRESENT, _VERIFIED, _ATTESTED = 0x01, 0x04, 0x40


class Authenticator:
    """Holds one passkey. `flags` say that its user is present and verified; `count` is its count of signatures."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.id, self.key = secrets.token_bytes(16), ec.generate_private_key(ec.SECP256R1())
        self.flags, self.count, self.handle = _PRESENT | _VERIFIED, 0, b""

    def make(self, options: str) -> str:
        """The passkey that is asked for, as the browser's JSON."""
        asked = json.loads(options)
        self.handle = _bytes(asked["user"]["id"])
        numbers = self.key.public_key().public_numbers()
        cose = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")}
        attested = bytes(16) + len(self.id).to_bytes(2, "big") + self.id + cbor2.dumps(cose)
        data = self._data(asked["rp"]["id"], self.flags | _ATTESTED) + attested
        attestation = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
        client = self._client("webauthn.create", asked["challenge"])
        return self._json({"clientDataJSON": _text(client), "attestationObject": _text(attestation)})

    def sign(self, options: str, **changes: Any) -> str:
        """The answer to a challenge, as the browser's JSON. `changes`: of what it says of its client."""
        asked = json.loads(options)
        self.count += 1
        data = self._data(asked["rpId"], self.flags)
        client = self._client("webauthn.get", asked["challenge"], **changes)
        signature = self.key.sign(data + sha256(client).digest(), ec.ECDSA(SHA256()))
        return self._json(
            {
                "clientDataJSON": _text(client),
                "authenticatorData": _text(data),
                "signature": _text(signature),
                "userHandle": _text(self.handle),
            }
        )

    def _data(self, host: str, flags: int) -> bytes:
        return sha256(host.encode()).digest() + bytes([flags]) + self.count.to_bytes(4, "big")

    def _client(self, kind: str, asked: str, **changes: Any) -> bytes:
        return json.dumps({"type": kind, "challenge": asked, "origin": self.origin, **changes}).encode()

    def _json(self, response: dict[str, str]) -> str:
        name = _text(self.id)
        return json.dumps({"id": name, "rawId": name, "type": "public-key", "response": response})


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
