"""The verifier's own arithmetic against the libraries' and the RFCs' vectors: it is the one that tenants run."""

from __future__ import annotations

import json
from hashlib import sha256

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.integrity import canonical_json
from billing.receipts import verifier
from billing.receipts.merkle import MerkleRoot, MerkleTree, leaf_hash

# RFC 8032, 7.1: public key, message, signature
VECTORS = (
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
)


@pytest.mark.parametrize(("public", "message", "signature"), VECTORS)
def test_ed25519_of_the_rfc(public: str, message: str, signature: str) -> None:
    key, text, signed = map(bytes.fromhex, (public, message, signature))
    assert verifier.is_signed_by_arithmetic(key, text, signed)
    assert verifier.is_signed(key, text, signed)
    for wrong in (signed[:-1] + b"\1", bytes(64), signed[1:], b"\xff" * 64):
        assert not verifier.is_signed_by_arithmetic(key, text, wrong)
        assert not verifier.is_signed(key, text, wrong)
    assert not verifier.is_signed_by_arithmetic(key, text + b"x", signed)
    assert not verifier.is_signed_by_arithmetic(b"\xff" * 32, text, signed)


@settings(max_examples=15)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=80), st.integers(0, 511))
def test_ed25519_as_the_library_does(seed: bytes, message: bytes, flipped: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public, signature = key.public_key().public_bytes_raw(), key.sign(message)
    assert verifier.is_signed_by_arithmetic(public, message, signature)
    wrong = bytearray(signature)
    wrong[flipped // 8] ^= 1 << flipped % 8
    assert not verifier.is_signed_by_arithmetic(public, message, bytes(wrong))


@given(st.integers(0, 70), st.data())
def test_trees(size: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(bytes([n])) for n in range(size)]
    tree, grown = MerkleTree(leaves), MerkleRoot()
    for leaf in leaves:
        grown.append(leaf)
    assert tree.root == grown.root == verifier.merkle_root(leaves)
    if size:
        index = data.draw(st.integers(0, size - 1))
        path = tree.path(index)
        assert verifier.root_of_path(leaves[index], index, size, path) == tree.root
        other = data.draw(st.integers(0, size - 1))
        if other != index:
            assert verifier.root_of_path(leaves[index], other, size, path) != tree.root
        assert verifier.root_of_path(leaves[index], index, size, [*path, bytes(32)]) is None
        assert verifier.root_of_path(leaves[index], size, size, path) is None


def test_a_tree_of_the_rfc() -> None:
    """RFC 6962, 2.1.3: of seven leaves the last goes up alone."""
    a, b, c = (leaf_hash(x) for x in (b"a", b"b", b"c"))
    left = sha256(b"\1" + a + b).digest()
    assert MerkleTree([a, b, c]).root == sha256(b"\1" + left + c).digest()


_values = st.recursive(
    st.text() | st.integers(-(2**53) + 1, 2**53 - 1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"\A[ -~]{0,6}\Z"), inner, max_size=3),
    max_leaves=8,
)


@given(_values)
def test_canonical_json_is_one_form(value: object) -> None:
    """Three ways to write it: receipts are encoded by msgspec, the books by json, and verified by the verifier."""
    text = canonical_json.canonical(value).encode()
    assert verifier.canonical(value) == text
    assert msgspec.json.encode(value, order="sorted") == text
    assert json.loads(text) == value
