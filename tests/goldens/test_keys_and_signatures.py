"""What is derived from secrets and outlives them in rows, caches and receivers: MACs, signatures, digests, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from prompt_cache.kv.block_keys import block_key, model_root, prefix_key, scope_root
from prompt_cache.model_digest import model_digest, text_digest
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ProjectKey
from tenancy.keys import Peppers, parse_key
from tests.goldens import golden
from turnpike.admin_services import webhook_topics
from webhooks import signing

KEPT_KEY = "tp_live_z4aguXQy0iVU_KOy253poVVLtPwbpIi58rLNJSA9alzGtFJqhdEj8JA2_4LxcNS"
"""A key as a customer has it."""
KEPT_SECRET = (
    "a3889594157993d703524234ce7e8afbb09156e0c692b0ec0108305bafff0968"
    "f6cade67c8561bf8509cd894f161bbadf3ccb3e764013913ba953b49"
)
"""The secret of an endpoint as the database has it, sealed under the master key of this test."""
ENDPOINT = UUID(int=7)


def test_api_keys() -> None:
    peppers = Peppers({1: b"p" * 32, 2: b"q" * 32}, 2)
    golden.check("api_keys", {"1": peppers.mac(1, "secret").hex(), "2": peppers.mac(2, "secret").hex()})


def test_kept_api_keys_are_read() -> None:
    """Keys that customers have: each part stands where it stood."""
    assert parse_key(KEPT_KEY[:-1]) is None
    presented = parse_key(KEPT_KEY)
    assert presented is not None
    golden.check("api_key_parts", [presented.public_id, presented.secret])


def test_webhooks() -> None:
    golden.check(
        "webhooks",
        {
            "topics": sorted(webhook_topics()),
            "secret": signing.encode_secret(b"s" * 32),
            "headers": signing.headers("msg_1", 1_795_000_000, b'{"a":1}', [b"s" * 32, b"t" * 32]),
        },
    )
    encrypted = signing.SecretCipher(b"m" * 32).encrypt(b"s" * 32, ENDPOINT)
    assert signing.SecretCipher(b"m" * 32).decrypt(encrypted, ENDPOINT) == b"s" * 32
    assert signing.SecretCipher(b"m" * 32).decrypt(bytes.fromhex(KEPT_SECRET), ENDPOINT) == b"s" * 32


def test_cache_keys(tmp_path: Path) -> None:
    """Gateways and replicas of different versions must agree on these."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "a.safetensors"):
        (tmp_path / name).write_text(f"{name}\n")
    scope = CacheDomains(b"s" * 32).project(UUID(int=1), UUID(int=2))
    key = ProjectKey(1, b"d" * 32, 0)
    root = scope_root(b"s" * 32, ("project", "a", "b"))
    parent = block_key(root, model_root("d" * 64), [1, 2, 3])
    frozen: dict[str, Any] = {
        "scope": [scope.scope, scope.root.hex(), key.derive(scope.root).hex()],
        "root": root.hex(),
        "model": model_root("d" * 64, "a" * 64, ["m" * 64]).hex(),
        "block": parent.hex(),
        "prefix": prefix_key(root, parent, [4, 5]).hex(),
        "text digest": text_digest(tmp_path),
        "model digest": model_digest(tmp_path, "float32"),
    }
    golden.check("cache_keys", frozen)
