"""Which tokens are delivered by which text, and the channel that carries it."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from billing.usage import Counts, Usage
from gateway.conversation.detokenizer import detokenizer_for
from gateway.conversation.tokenizer import Tokenizer
from gateway.errors import Interrupted
from gateway.generation.delivery import ChoiceDelta, Delivery, DeliveryChunk, Failed, Finished, ReaderGone, Started
from gateway.generation.transcript import Transcript
from protocol.requests import TokenLogprob
from tests.fast import examples
from tests.gateway.tiny_model import make_tokenizer

TOKENIZER = Tokenizer(make_tokenizer().to_str())
END = TOKENIZER.literal("<|end|>")[0]


def transcript(*stops: str) -> Transcript:
    return Transcript(detokenizer_for(TOKENIZER), stops, {END})


@given(st.text(st.sampled_from("ab東👩é "), max_size=30), st.lists(st.text("ab東", min_size=1, max_size=3), max_size=3))
@settings(max_examples=examples(200), deadline=None)
def test_a_token_is_delivered_with_its_last_character(text: str, stops: list[str]) -> None:
    tokens = [*TOKENIZER.content(text), END]
    watched = transcript(*stops)
    given_out = ""
    for taken, token in enumerate(tokens, start=1):
        if watched.stopped:
            break
        given_out += watched.feed([token])
        assert watched.tokens == taken
        assert watched.shown <= taken
        raw = b"".join(map(TOKENIZER.token_bytes, tokens[: watched.shown]))
        assert given_out.encode().startswith(raw), "more tokens counted than text given"
        if watched.shown < taken and not watched.stopped:
            more = b"".join(map(TOKENIZER.token_bytes, tokens[: watched.shown + 1]))
            assert len(given_out.encode()) < len(more), "a token whose text is out is not counted"
    if not watched.stopped:
        given_out += watched.finish()
        assert given_out == text
        assert watched.shown == watched.tokens == len(tokens)
    else:
        assert not any(stop in given_out for stop in stops)


def test_cutting_a_burst_changes_nothing() -> None:
    tokens = TOKENIZER.content("The quick brown fox")
    one, many = transcript("brown"), transcript("brown")
    assert one.feed(tokens) == "".join(many.feed([token]) for token in tokens) == "The quick "
    assert one.tokens == many.tokens


def test_the_tokens_of_a_stop_string_are_told_of() -> None:
    """As many as the usage counts, however they arrive; their text is not shown."""
    tokens = TOKENIZER.content("The quick brown fox")
    scores = [TokenLogprob(-float(at)) for at in range(len(tokens))]
    burst = transcript("brown")
    assert burst.feed(tokens, scores) == "The quick "
    told = [score.token for score in burst.scores()]
    assert told == tokens[: burst.tokens]
    assert b"".join(map(TOKENIZER.token_bytes, told)).endswith(b"brown")
    single, one_by_one = transcript("brown"), []
    for token, score in zip(tokens, scores, strict=True):
        single.feed([token], [score])
        one_by_one += [entry.token for entry in single.scores()]
    assert one_by_one == told


def delivery(*, streamed: bool = True) -> tuple[Delivery, list[int], list[str]]:
    delivered: list[int] = []
    left: list[str] = []
    made = Delivery(
        streamed=streamed, on_confirmed=delivered.append, on_left=left.append, on_failed=lambda failure: None
    )
    return made, delivered, left


END_OK = Finished(("stop",), Counts(), Usage(), 0, "USD")


async def test_what_is_ready_is_taken_at_once() -> None:
    channel, delivered, left = delivery()
    channel.push(ChoiceDelta(0, "a"), 1)
    channel.push(ChoiceDelta(0, ""), 2)
    channel.push(ChoiceDelta(0, "b"), 3)
    assert await channel.next() == DeliveryChunk((ChoiceDelta(0, "ab"),), 3)
    assert await channel.next(0.01) is None
    waiting = asyncio.create_task(channel.drained())
    await asyncio.sleep(0)
    assert not waiting.done()
    channel.confirm(3)
    assert await waiting
    assert delivered == [3]
    channel.finish(END_OK)
    channel.fail(Interrupted("too late"))
    assert await channel.next() is END_OK
    channel.leave("client")
    assert left == []


async def test_the_start_is_told_once_and_first() -> None:
    started, other = Started(Usage(7), Counts()), Started(Usage(8), Counts())
    channel, _, _ = delivery()
    channel.push(ChoiceDelta(0, "a"), 1)
    channel.start(started)
    assert await channel.next() is started
    channel.start(other)  # of another attempt
    assert await channel.next() == DeliveryChunk((ChoiceDelta(0, "a"),), 1)
    whole, _, _ = delivery(streamed=False)
    whole.start(started)
    whole.finish(END_OK)
    assert await whole.next() is END_OK


async def test_a_bad_end_comes_after_the_text() -> None:
    channel, _, left = delivery()
    channel.push(ChoiceDelta(0, "a"), 1)
    failure = Interrupted("oh")
    channel.fail(failure)
    assert await channel.next() == DeliveryChunk((ChoiceDelta(0, "a"),), 1)
    assert await channel.next() == Failed(failure)
    channel.leave("client")
    channel.leave("client")
    assert left == ["client"]
    assert not await channel.drained()


async def test_who_left_is_not_delivered_to() -> None:
    channel, delivered, _ = delivery()
    channel.push(ChoiceDelta(0, "a"), 1)
    waiting = asyncio.create_task(channel.drained())
    await asyncio.sleep(0)
    channel.leave("client")
    assert not await waiting
    channel.confirm(1)
    assert delivered == []
    assert channel.delivered == 0
    assert isinstance(await channel.next(), ReaderGone)


async def test_a_whole_answer_is_not_waited_for() -> None:
    channel, _, _ = delivery(streamed=False)
    channel.push(ChoiceDelta(0, "a"), 1)
    assert await channel.drained()
