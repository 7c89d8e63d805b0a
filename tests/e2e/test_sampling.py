"""How tokens are drawn, several answers, log probabilities, text completions: the official client, real processes."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from engine.sampling.counter_random import choice_seed
from tests.e2e.conftest import Running

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MODEL = "stdlib-qa"
QUESTION: list[Any] = [{"role": "user", "content": "What does textwrap.dedent do?"}]


ODD: list[Any] = [{"role": "user", "content": "purple rain, seven times over: why?"}]
"""The demo model knows its answers so well that heat does not change them; here it has none."""


def ask(serve: Running, messages: list[Any] = QUESTION, **fields: Any) -> Any:
    with serve.client() as client:
        return client.chat.completions.create(
            model=MODEL, messages=messages, **{"max_tokens": 40, "temperature": 0, **fields}
        )


def text(answer: Any) -> str:
    return answer.choices[0].message.content or ""


def test_each_parameter_does_what_it_says(serve: Running) -> None:
    plain = text(ask(serve))
    assert "whitespace" in plain
    hot = {"messages": ODD, "temperature": 2.0, "seed": 5}
    cold = text(ask(serve, ODD))
    assert text(ask(serve, **hot)) != cold
    assert text(ask(serve, **hot, extra_body={"top_k": 1})) == cold
    assert text(ask(serve, **hot, extra_body={"min_p": 1.0})) == cold
    assert text(ask(serve, **hot, top_p=0)) == cold
    assert text(ask(serve, **hot)) == text(ask(serve, **hot))
    banned = ask(serve, logit_bias={str(token): -100 for token in range(300, 1300)})
    assert text(banned) != plain
    endless = {"max_tokens": 120, "extra_body": {"ignore_eos": True}}
    repeated = text(ask(serve, **endless))
    assert text(ask(serve, **endless, frequency_penalty=2.0, presence_penalty=2.0)) != repeated
    assert text(ask(serve, max_tokens=120, extra_body={"ignore_eos": True, "repetition_penalty": 5.0})) != repeated
    long = ask(serve, max_tokens=200, extra_body={"min_tokens": 150})
    assert long.usage.completion_tokens >= 150
    on = ask(serve, **endless)
    assert (on.usage.completion_tokens, on.choices[0].finish_reason) == (120, "length")


def test_several_answers_are_one_request(serve: Running) -> None:
    before = serve.used()
    hot = {"temperature": 2.0, "seed": 11, "max_tokens": 30}
    many = ask(serve, ODD, n=3, **hot)
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in many.choices]
    assert len(set(texts)) == 3
    seeds = [choice_seed(11, choice) for choice in range(3)]
    signed = [seed - 2**64 if seed >= 2**63 else seed for seed in seeds]
    alone = [ask(serve, ODD, **{**hot, "seed": seed}) for seed in signed]
    assert texts == [text(answer) for answer in alone]
    assert many.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert many.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in alone)
    with serve.client() as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=ODD, n=3, stream=True, stream_options={"include_usage": True}, **hot
        )
        streamed, ends, counted = ["", "", ""], {}, None
        for chunk in stream:
            counted = chunk.usage or counted
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    ends[choice.index] = choice.finish_reason
    assert streamed == texts
    assert ends == {choice.index: choice.finish_reason for choice in many.choices}
    assert counted is not None
    assert counted.completion_tokens == many.usage.completion_tokens
    after = serve.used()
    assert after.requests - before.requests == 5


def test_a_stop_string_ends_one_answer_alone(serve: Running) -> None:
    hot = {"temperature": 2.0, "seed": 11, "max_tokens": 60}
    texts = [choice.message.content for choice in ask(serve, ODD, n=3, **hot).choices]
    word = next(
        piece
        for piece in texts[1].split()
        if len(piece) > 3 and all(piece not in other for other in (texts[0], texts[2]))
    )
    stopped = ask(serve, ODD, n=3, stop=word, **hot)
    assert [choice.message.content for choice in stopped.choices] == [
        texts[0],
        texts[1][: texts[1].index(word)],
        texts[2],
    ]
    assert stopped.choices[1].finish_reason == "stop"


def test_log_probabilities_of_a_chat(serve: Running) -> None:
    answer = ask(serve, logprobs=True, top_logprobs=4)
    entries = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == text(answer)
    for entry in entries:
        assert len(entry.top_logprobs) == 4
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0  # greedy
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-6
    with serve.client() as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=40, stream=True, logprobs=True, top_logprobs=4
        )
        streamed = [
            entry
            for chunk in stream
            for choice in chunk.choices
            if choice.logprobs is not None
            for entry in choice.logprobs.content or []
        ]
    assert streamed == entries


def test_a_token_cut_by_a_stop_string_has_a_log_probability(serve: Running) -> None:
    """An entry for each token that the usage counts, in chat and completions, streamed or not."""
    whole = text(ask(serve))
    stop = whole.split()[2]
    with serve.client() as client:
        chat: Any = {
            "model": MODEL,
            "messages": QUESTION,
            "temperature": 0,
            "max_tokens": 40,
            "stop": stop,
            "logprobs": True,
        }
        plain: Any = {"model": MODEL, "prompt": "The module", "temperature": 0, "max_tokens": 40, "logprobs": 1}
        plain["stop"] = client.completions.create(**plain).choices[0].text.split()[1]
        usage: Any = {"stream": True, "stream_options": {"include_usage": True}}
        answer = client.chat.completions.create(**chat)
        assert answer.choices[0].finish_reason == "stop"
        assert stop not in answer.choices[0].message.content
        assert stop in "".join(entry.token for entry in answer.choices[0].logprobs.content)
        assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
        streamed, count = [], 0
        for chunk in client.chat.completions.create(**chat, **usage):
            count = chunk.usage.completion_tokens if chunk.usage else count
            streamed += [entry for choice in chunk.choices if choice.logprobs for entry in choice.logprobs.content]
        assert (streamed, count) == (answer.choices[0].logprobs.content, answer.usage.completion_tokens)
        completion = client.completions.create(**plain)
        told = completion.choices[0].logprobs
        assert completion.choices[0].finish_reason == "stop"
        assert len(told.tokens) == len(told.token_logprobs) == completion.usage.completion_tokens
        tokens: list[str] = []
        for chunk in client.completions.create(**plain, **usage):
            tokens += [token for choice in chunk.choices if choice.logprobs for token in choice.logprobs.tokens]
        assert tokens == told.tokens


def test_text_completions(serve: Running) -> None:
    with serve.client() as client:
        create: Any = client.completions.create
        plain = create(model=MODEL, prompt="The module", max_tokens=8, temperature=0)
        assert plain.object == "text_completion"
        assert plain.choices[0].text
        assert plain.choices[0].logprobs is None
        scored = create(model=MODEL, prompt="The module", max_tokens=8, temperature=0, logprobs=3, echo=True)
        choice = scored.choices[0]
        assert choice.text == "The module" + plain.choices[0].text
        told = choice.logprobs
        assert "".join(told.tokens) == choice.text
        assert told.token_logprobs[0] is told.top_logprobs[0] is None
        assert all(value <= 0 for value in told.token_logprobs[1:])
        assert [choice.text[at : at + len(token)] for at, token in zip(told.text_offset, told.tokens, strict=True)] == (
            told.tokens
        )
        # Scoring alone, as evaluation harnesses do it: of the whole text the same values as while it was drawn.
        only = create(model=MODEL, prompt=choice.text, max_tokens=0, echo=True, logprobs=0)
        assert only.usage.completion_tokens == 0
        assert only.choices[0].text == choice.text
        if only.choices[0].logprobs.tokens == told.tokens:
            assert only.choices[0].logprobs.token_logprobs == told.token_logprobs
        several = create(model=MODEL, prompt=["The module", "A function"], n=2, max_tokens=6, seed=3)
        assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
        stream = create(model=MODEL, prompt=["The module", "A function"], n=2, max_tokens=6, seed=3, stream=True)
        texts = [""] * 4
        for chunk in stream:
            for each in chunk.choices:
                texts[each.index] += each.text
        assert texts == [choice.text for choice in several.choices]
        with pytest.raises(openai.BadRequestError) as caught:
            create(model=MODEL, prompt="x", suffix="y")
        assert caught.value.param == "suffix"


def test_token_ids_are_a_prompt_too(serve: Running) -> None:
    with serve.client() as client:
        create: Any = client.completions.create
        ids = [300, 400, 500, 600]
        one = create(model=MODEL, prompt=ids, max_tokens=6, temperature=0)
        two = create(model=MODEL, prompt=[ids, ids[:2]], max_tokens=6, temperature=0)
        assert one.usage.prompt_tokens == 4
        assert two.usage.prompt_tokens == 6
        assert two.choices[0].text == one.choices[0].text


class Answer(BaseModel):
    """What the official client makes a strict schema of."""

    module: str
    functions: list[str]
    certain: bool


def test_structured_answers(serve: Running) -> None:
    with serve.client() as client:
        parsed = client.chat.completions.parse(
            model=MODEL, messages=QUESTION, response_format=Answer, max_tokens=60, temperature=1.0, seed=4
        )
        assert isinstance(parsed.choices[0].message.parsed, Answer)
        assert parsed.choices[0].finish_reason == "stop"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for extra, check in (
        ({"guided_json": schema}, lambda text: jsonschema.validate(json.loads(text), schema)),
        ({"guided_regex": "[0-9]{4}"}, lambda text: re.fullmatch("[0-9]{4}", text).group()),  # type: ignore[union-attr]
        ({"guided_choice": ["red", "blue"]}, ["red", "blue"].index),
        ({"guided_grammar": 'root ::= "a" | "b"'}, ["a", "b"].index),
        ({"structured_outputs": {"choice": ["x", "y"]}}, ["x", "y"].index),
        ({"response_format": {"type": "json_object"}}, json.loads),
    ):
        answer = ask(serve, extra_body=extra, max_tokens=50)
        assert answer.choices[0].finish_reason == "stop"
        check(text(answer))
    with serve.client() as client:
        said = client.completions.create(
            model=MODEL, prompt="Is it?", max_tokens=5, extra_body={"guided_choice": ["yes", "no"]}, n=3
        )
        assert {choice.text for choice in said.choices} <= {"yes", "no"}


def test_an_impossible_schema_is_refused_by_name(serve: Running) -> None:
    before = serve.used()
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(
                serve,
                stream=stream,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"allOf": [{"type": "string"}, {"type": "number"}]}},
                },
            )
        assert caught.value.param == "response_format.json_schema.schema"
        assert "incompatible types" in caught.value.message
    assert serve.used() == before
