"""The tokens of requests that decode together, against plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.decode_batch import DecodeBatch
from engine.scheduling.request import Request
from engine.scheduling.token_sequence import LatestTokens, TokenSequence
from prompt_cache.kv.block_keys import BLOCK_TOKENS, chain
from tests.engine.scheduling.replica_without_model import request
from tests.fast import examples

MOST = 5


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_each_request_has_the_tokens_that_it_drew(data: st.DataObject):
    """Requests join and leave the batch at any step, in any order; drafts are accepted; now and then somebody reads."""
    batch, expected = DecodeBatch(MOST, 80, 80 * MOST), {}
    outside = [request(number, 60 + number, 10_000) for number in range(MOST)]
    for each in outside:
        expected[each.arrival] = list(each.tokens)
        each.table = [(0,)] * 200  # room for drafts
    inside: list[Request] = []
    drawn = 1000
    for _ in range(data.draw(st.integers(1, 12), "turns")):
        for each in data.draw(st.lists(st.sampled_from(outside), unique=True), "join") if outside else ():
            outside.remove(each)
            inside.append(each)
            batch.join(each)
        for each in data.draw(st.lists(st.sampled_from(inside), unique=True), "leave") if inside else ():
            inside.remove(each)
            outside.append(each)
            batch.leave(each)
        for _ in range(data.draw(st.integers(0, 70), "steps") if inside else 0):
            works = list(batch.decodes)
            if data.draw(st.integers(0, 40), "shuffle") == 0:
                works = works[::-1]  # as when somebody left meanwhile
            if data.draw(st.integers(0, 20), "drafts") == 0:
                for work in works:
                    drafts = [drawn := drawn + 1 for _ in range(data.draw(st.integers(0, 80), "of them"))]
                    assert batch.draft(work.request, drafts) == len(drafts)
            assert batch.drafted == sum(work.count - 1 for work in works)
            tokens, accepted = [], {}
            for work in works:
                assert work.start == len(expected[work.request.arrival]) - 1
                assert list(work.tokens) == [*expected[work.request.arrival][-1:], *work.drafts]
                if work.drafts:
                    accepted[work.request.arrival] = work.drafts[: data.draw(st.integers(0, 80), "accepted")]
                    expected[work.request.arrival] += accepted[work.request.arrival]
                drawn += 1
                tokens.append(drawn)
                expected[work.request.arrival].append(drawn)
            for attended in batch.advance(works, tokens, accepted):
                length = attended.tokens.flush()
                assert length == len(expected[attended.arrival])
                batch.plan(attended, length)
        for each in data.draw(st.lists(st.sampled_from(inside + outside), unique=True), "read"):
            assert list(each.tokens) == expected[each.arrival]
            assert each.tokens[-3:].tolist() == expected[each.arrival][-3:]
            assert each.output == len(expected[each.arrival]) - each.prompt
    for each in inside + outside:
        assert len(each.tokens) == len(expected[each.arrival])
        assert list(each.tokens) == expected[each.arrival]
        blocks = len(each.tokens) // BLOCK_TOKENS
        scopes = [(until, root) for until, root, _ in each.segments]
        assert each.extend_keys(blocks) == chain(each.root, scopes, expected[each.arrival])


def test_what_nobody_took_in_time_is_an_error_and_not_another_token():
    latest, tokens = LatestTokens(1), TokenSequence([7])
    tokens.follow(latest, 0)
    for token in range(BLOCK_TOKENS + 1):
        latest.write([token])
    with pytest.raises(ValueError, match="65 tokens asked for, 64 are kept"):
        tokens.flush()


def test_before_the_prompts_end_another_thread_may_read():
    """Nothing is moved by it: the watchdog asks what harmed while the engine's thread hangs."""
    latest, made = LatestTokens(1), request(0, 100)
    made.tokens.follow(latest, 0)
    before = made.input_key()
    latest.write([5])
    assert made.input_key() == before == request(0, 100).input_key()
    assert latest.since(0, 0).tolist() == [5]
    assert list(made.tokens)[-1] == made.tokens.last == 5
