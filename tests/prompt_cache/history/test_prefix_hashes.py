"""Hashes of prefixes: equal as long as the tokens are, and nothing in them without the key."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_cache.history.prefix_hashes import (
    HASH_BYTES,
    Node,
    boundaries,
    common_tokens,
    family,
    history_secret,
    nodes_of,
    piece_keys,
)
from tests.fast import examples

SECRET = history_secret(b"r" * 32)
KIN = family(SECRET, "m", "d", "")
tokens = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=700)


def flat(nodes: list[Node]) -> bytes:
    return b"".join(node.hashes for node in nodes)


@given(tokens, tokens, st.integers(0, 700))
@settings(max_examples=examples(200))
def test_the_first_difference_is_found_to_the_token(one: list[int], two: list[int], kept: int) -> None:
    other = one[:kept] + two
    common = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    found = common_tokens(flat(nodes_of(one, KIN)), flat(nodes_of(other, KIN)))
    assert found == common or (common == 0 and found == 1), "only the first token's hash is withheld"


@given(tokens)
@settings(max_examples=examples(100))
def test_nodes_are_a_chain_that_covers_the_prompt(prompt: list[int]) -> None:
    nodes = nodes_of(prompt, KIN)
    assert [node.end for node in nodes] == list(boundaries(len(prompt)))
    assert (nodes[0].start, nodes[0].parent, nodes[-1].end) == (0, KIN.key, len(prompt))
    for before, after in itertools.pairwise(nodes):
        assert (after.start, after.parent) == (before.end, before.key)
    assert len(flat(nodes)) == HASH_BYTES * len(prompt)
    assert flat(nodes)[:HASH_BYTES] == bytes(HASH_BYTES), "a hash of one token alone"


def test_families_have_nothing_in_common() -> None:
    prompt = list(range(300))
    kin = [
        KIN,
        family(SECRET, "m2", "d", ""),
        family(SECRET, "m", "d2", ""),
        family(SECRET, "m", "d", "p"),
        family(history_secret(b"q" * 32), "m", "d", ""),
        family(SECRET, "md", "", ""),
    ]
    hashes = [flat(nodes_of(prompt, one))[HASH_BYTES:] for one in kin]
    for at, one in enumerate(hashes):
        for other in hashes[at + 1 :]:
            assert common_tokens(one, other) == 0


def test_equal_tokens_in_other_places_have_other_hashes() -> None:
    hashes = flat(nodes_of([5] * 600, KIN))
    each = {hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)}
    assert len(each) == 600


def test_pieces_are_chained_and_told_apart_from_their_kinds() -> None:
    one = piece_keys(SECRET, [("system", "a"), ("user", "b"), ("user", "c")])
    two = piece_keys(SECRET, [("system", "a"), ("user", "x"), ("user", "c")])
    assert (one[0], one[1] == two[1], one[2] == two[2]) == (two[0], False, False)
    assert piece_keys(SECRET, [("sys", "tema")]) != piece_keys(SECRET, [("system", "a")])
    dice = random.Random(2)
    assert piece_keys(dice.randbytes(32), [("system", "a")]) != one[:1]
