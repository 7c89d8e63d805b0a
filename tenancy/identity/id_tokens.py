"""Verifies what identity providers sign: ID tokens (OpenID Connect Core 3.1.3.7) and logout tokens (Back-Channel
Logout 1.0, section 2.6). Every check has a name of its own, which the refusal says.

The algorithm is taken from a list of asymmetric ones, and must fit the type of the published key: `none` and HMACs with
a public key are not among them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import msgspec
from joserfc import jwk, jws
from joserfc.errors import JoseError

from tenancy.identity.refusals import IdentityRefused

ALGORITHMS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", "")),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "EdDSA": ("OKP", "Ed25519"),
    "Ed25519": ("OKP", "Ed25519"),
}
"""Algorithm -> the type of its keys, and their curve."""
LEEWAY_S = 60
"""How far a provider's clock may be from ours."""
OLDEST_S = 600
"""How long before it is presented a token may have been issued."""
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
MOST_TOKEN = 64 * 1024
"""Characters of a token that are looked at."""
_LEAST_RSA_BITS = 2048

Claims = dict[str, Any]
Keys = Sequence[Mapping[str, Any]]


def key_id_of(token: str) -> str | None:
    """The id of the key that a token says it is signed with. Raises IdentityRefused."""
    return _header(token)[1]


def verify_id_token(token: str, keys: Keys, *, issuer: str, client_id: str, nonce: str, now: int) -> Claims:
    """The claims of an ID token that was issued for this sign-in. `now`: in seconds since the Unix epoch.

    Raises IdentityRefused.
    """
    claims = _verified(token, keys, issuer, client_id, now)
    if "exp" not in claims:
        raise IdentityRefused("no_expiry")
    if claims.get("nonce") != nonce:
        raise IdentityRefused("wrong_nonce")
    if not isinstance(claims.get("sub"), str) or not 0 < len(claims["sub"]) <= 255:
        raise IdentityRefused("no_subject")
    return claims


def verify_logout_token(token: str, keys: Keys, *, issuer: str, client_id: str, now: int) -> Claims:
    """The claims of a logout token. `now`: in seconds since the Unix epoch. Raises IdentityRefused."""
    claims = _verified(token, keys, issuer, client_id, now)
    events = claims.get("events")
    if not isinstance(events, dict) or LOGOUT_EVENT not in events or "nonce" in claims:
        raise IdentityRefused("no_logout_event")
    if not any(isinstance(claims.get(name), str) and claims[name] for name in ("sub", "sid")):
        raise IdentityRefused("no_subject")
    return claims


def check_fresh(claims: Claims, *, since: int, acr_values: Sequence[str]) -> None:
    """Raise IdentityRefused unless the user proved itself at the provider at `since` or later (seconds since the Unix
    epoch), by one of these ways, if there are any."""
    at = claims.get("auth_time")
    if not _is_number(at) or at < since - LEEWAY_S:
        raise IdentityRefused("stale_sign_in")
    if acr_values and claims.get("acr") not in acr_values:
        raise IdentityRefused("weak_sign_in")


def proven_at(claims: Claims) -> int:
    """When the user proved itself at the provider, in seconds since the Unix epoch; 0 if it does not say."""
    at = claims.get("auth_time")
    return int(at) if _is_number(at) else 0


def _verified(token: str, keys: Keys, issuer: str, client_id: str, now: int) -> Claims:
    algorithm, key_id = _header(token)
    key = _key_for(keys, algorithm, key_id)
    try:
        payload = jws.deserialize_compact(token, key, algorithms=[algorithm]).payload
    except (JoseError, ValueError, TypeError) as error:
        raise IdentityRefused("bad_signature", str(error)) from error
    claims = _object(payload)
    _check_parties(claims, issuer, client_id)
    _check_times(claims, now)
    return claims


def _header(token: str) -> tuple[str, str | None]:
    """The algorithm and the key's id of a token. Raises IdentityRefused."""
    parts = token.split(".") if len(token) <= MOST_TOKEN and token.isascii() else []
    if len(parts) != 3 or not all(parts[:2]):
        raise IdentityRefused("malformed_token")
    try:
        header = _object(base64.urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4)))
    except (binascii.Error, ValueError) as error:
        raise IdentityRefused("malformed_token", str(error)) from error
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise IdentityRefused("algorithm_refused", str(algorithm)[:40])
    if "crit" in header or header.get("b64") is False:
        raise IdentityRefused("header_refused")
    if key_id is not None and not isinstance(key_id, str):
        raise IdentityRefused("unknown_key")
    return algorithm, key_id  # "jwk", "jku" and "x5c" of the header are not looked at: keys are the provider's own


def _key_for(keys: Keys, algorithm: str, key_id: str | None) -> Any:
    """The one published key that fits. Raises IdentityRefused."""
    kind, curve = ALGORITHMS[algorithm]
    fitting = [
        key
        for key in keys
        if key.get("kty") == kind
        and (not curve or key.get("crv") == curve)
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and (key_id is None or key.get("kid") == key_id)
    ]
    if len(fitting) != 1:
        raise IdentityRefused("unknown_key")
    public = {name: value for name, value in fitting[0].items() if name in ("kty", "crv", "n", "e", "x", "y")}
    try:
        key = jwk.import_key(public)
        weak = isinstance(key, jwk.RSAKey) and key.public_key.key_size < _LEAST_RSA_BITS
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise IdentityRefused("keys_refused", str(error)) from error
    if weak:
        raise IdentityRefused("keys_refused", "an RSA key of fewer than 2048 bits")
    return key


def _check_parties(claims: Claims, issuer: str, client_id: str) -> None:
    if claims.get("iss") != issuer:
        raise IdentityRefused("wrong_issuer")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if client_id not in audiences:
        raise IdentityRefused("wrong_audience")
    party = claims.get("azp")
    if (party is not None and party != client_id) or (len(audiences) > 1 and party is None):
        raise IdentityRefused("wrong_authorized_party")


def _check_times(claims: Claims, now: int) -> None:
    if "exp" in claims and not (_is_number(claims["exp"]) and now < claims["exp"] + LEEWAY_S):
        raise IdentityRefused("expired")
    if "nbf" in claims and not (_is_number(claims["nbf"]) and claims["nbf"] <= now + LEEWAY_S):
        raise IdentityRefused("not_yet_valid")
    issued = claims.get("iat")
    if not _is_number(issued) or issued < now - OLDEST_S - LEEWAY_S:
        raise IdentityRefused("issued_too_long_ago")
    if issued > now + LEEWAY_S:
        raise IdentityRefused("issued_in_the_future")


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _object(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise IdentityRefused("malformed_token", str(error)) from error
