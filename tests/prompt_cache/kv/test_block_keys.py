"""Keys say who may read a block: whatever differs in model, scope, parent or tokens makes another key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prompt_cache.kv.block_keys import BLOCK_TOKENS, block_key, chain, model_root, prefix_key, scope_root

SECRET = b"s" * 32
MODEL = model_root("m" * 64)
A, B = (scope_root(SECRET, ("project", "tenant", name)) for name in ("a", "b"))
TOKENS = list(range(3 * BLOCK_TOKENS + 5))


def test_scopes_share_no_key() -> None:
    ours, theirs = (chain(MODEL, [(len(TOKENS), root)], TOKENS) for root in (A, B))
    assert len(ours) == len(theirs) == 3
    assert not set(ours) & set(theirs)
    other_model = chain(model_root("n" * 64), [(len(TOKENS), A)], TOKENS)
    assert not set(ours) & set(other_model)


def test_no_name_runs_into_the_next() -> None:
    roots = [scope_root(SECRET, domain) for domain in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""))]
    assert len(set(roots)) == 4
    assert scope_root(b"t" * 32, ("abc",)) not in roots
    assert len({MODEL, model_root("m" * 64, "adapter"), model_root("m" * 64, "", ["adapter"])}) == 3


def test_a_block_of_two_scopes_belongs_to_the_narrower() -> None:
    """Domains narrow along a prompt: a block is read by those alone who may read its last token."""
    until = BLOCK_TOKENS + 10
    mixed = chain(MODEL, [(until, A), (len(TOKENS), B)], TOKENS)
    shared = chain(MODEL, [(len(TOKENS), A)], TOKENS)
    assert mixed[0] == shared[0]
    assert mixed[1] == block_key(B, mixed[0], TOKENS[BLOCK_TOKENS : 2 * BLOCK_TOKENS]) != shared[1]


@given(st.lists(st.integers(0, 2**31 - 1), max_size=4 * BLOCK_TOKENS), st.integers(0, 4))
def test_a_chain_grows_without_being_hashed_again(tokens: list[int], known: int) -> None:
    keys = chain(MODEL, [(len(tokens), A)], tokens)
    assert len(keys) == len(tokens) // BLOCK_TOKENS
    assert chain(MODEL, [(len(tokens), A)], tokens, known=keys[:known]) == keys


@given(st.lists(st.integers(0, 5 * BLOCK_TOKENS), max_size=4), st.integers(0, 5 * BLOCK_TOKENS))
def test_a_chain_has_the_keys_of_its_blocks_one_after_another(cuts: list[int], length: int) -> None:
    segments = [(until, b"root %d" % until) for until in sorted({cut for cut in cuts if cut < length})]
    segments.append((length, b"the last root"))
    tokens = list(range(length))
    parent, expected = b"model", []
    for end in range(BLOCK_TOKENS, length + 1, BLOCK_TOKENS):
        root = next(root for until, root in segments if until >= end)
        parent = block_key(root, parent, tokens[end - BLOCK_TOKENS : end])
        expected.append(parent)
    assert chain(b"model", segments, tokens) == expected


def test_a_prefix_is_exact_and_never_a_block() -> None:
    parent = chain(MODEL, [(len(TOKENS), A)], TOKENS)[-1]
    rests = [TOKENS[-5:], TOKENS[-5:-1], [], [*TOKENS[-5:], 0]]
    keys = {prefix_key(A, parent, rest) for rest in rests}
    assert len(keys) == 4
    block = TOKENS[:BLOCK_TOKENS]
    assert prefix_key(A, parent, block) != block_key(A, parent, block)
    assert prefix_key(B, parent, TOKENS[-5:]) not in keys
