"""Measures a trained network: right first sentences, long prompts, bits per byte, agreement of the draft."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from . import phrasings, talk
from .conversations import long_text, prompt_ids
from .corpus import Corpus
from .network import Llama
from .tokenizer import BEGIN, END

LONGEST = 160  # tokens of an answer


@dataclass(frozen=True)
class Question:
    question: str
    expected: str
    phrasing: str  # seen or unseen


def choose_questions(corpus: Corpus, each: int, seed: int) -> list[Question]:
    """`each` items at random asked in a trained phrasing, and as many others in one that training never shows."""
    rng = random.Random(f"questions-{seed}")
    chosen = rng.sample(corpus.items, min(2 * each, len(corpus.items)))
    seen, unseen = chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]
    return [Question(phrasings.plain_question(item, rng), item.sentence, "seen") for item in seen] + [
        Question(phrasings.unseen_question(item, rng), item.sentence, "unseen") for item in unseen
    ]


def is_right(answer: str, expected: str) -> bool:
    """Whether the answer's first sentence is the expected one."""
    return answer == expected or answer.startswith((expected + " ", expected + "\n"))


@torch.no_grad()
def greedy(model: Llama, prompts: list[list[int]], end: int, longest: int = LONGEST) -> list[list[int]]:
    """The most likely continuations, all prompts side by side, every step computed anew: slow, short and beyond doubt.

    Rows are padded behind their end, where causal attention does not look.
    """
    device = next(model.parameters()).device
    longest = min(longest, model.shape.context - max(map(len, prompts)))
    width = max(map(len, prompts)) + longest
    ids = torch.full((len(prompts), width), end, device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    running = torch.ones(len(prompts), dtype=torch.bool, device=device)
    rows = torch.arange(len(prompts), device=device)
    while running.any() and int(lengths.max()) < width:
        hidden = model.hidden(ids[:, : int(lengths.max())])
        logits = F.linear(hidden[rows, lengths - 1], model.model.embed_tokens.weight)
        chosen = logits.argmax(-1)
        running &= chosen != end
        ids[rows[running], lengths[running]] = chosen[running]
        lengths += running
    return [
        ids[row, len(prompt) : int(length)].tolist()
        for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def answers(
    model: Llama, tokenizer: Tokenizer, conversations: list[list[dict[str, str]]], at_once: int = 50
) -> list[str]:
    """The assistant's greedy answers."""
    prompts = [prompt_ids(tokenizer, messages) for messages in conversations]
    end = tokenizer.token_to_id(END)
    texts: list[str] = []
    for start in range(0, len(prompts), at_once):
        texts += [tokenizer.decode(ids) for ids in greedy(model, prompts[start : start + at_once], end)]
    return texts


def score(
    model: Llama, tokenizer: Tokenizer, questions: list[Question], system: str = ""
) -> tuple[int, list[tuple[str, str]]]:
    """How many are right, and the (question, answer) pairs that are not."""
    before = [{"role": "system", "content": system}] if system else []
    given = answers(
        model, tokenizer, [[*before, {"role": "user", "content": question.question}] for question in questions]
    )
    wrong = [
        (question.question, text)
        for question, text in zip(questions, given, strict=True)
        if not is_right(text, question.expected)
    ]
    return len(questions) - len(wrong), wrong


def system_prompt_of(corpus: Corpus, tokenizer: Tokenizer, tokens: int, seed: int) -> str:
    """Library text of about so many tokens that training did not see in this order."""
    rng = random.Random(f"system-{tokens}-{seed}")
    text = "\n".join(long_text(corpus, tokens, rng) for _ in range(8))
    return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids[:tokens])


def earlier_turns(corpus: Corpus, tokenizer: Tokenizer, tokens: int, seed: int) -> list[dict[str, str]]:
    """A conversation of about so many tokens, to ask a question after."""
    rng = random.Random(f"turns-{tokens}-{seed}")
    messages: list[dict[str, str]] = []
    while len(prompt_ids(tokenizer, messages)) < tokens:
        for item in rng.sample(corpus.items, min(3, len(corpus.items))):
            messages += [
                {"role": "user", "content": phrasings.plain_question(item, rng)},
                {"role": "assistant", "content": item.answer},
            ]
    return messages


def score_after_turns(
    model: Llama, tokenizer: Tokenizer, questions: list[Question], before: list[dict[str, str]]
) -> int:
    given = answers(
        model, tokenizer, [[*before, {"role": "user", "content": question.question}] for question in questions]
    )
    return sum(is_right(text, question.expected) for question, text in zip(questions, given, strict=True))


def score_facts(model: Llama, tokenizer: Tokenizer, corpus: Corpus, tokens: int, count: int, seed: int) -> int:
    """How many facts, each stated once somewhere in a system prompt of `tokens` tokens, are found again."""
    rng = random.Random(f"facts-{tokens}-{seed}")
    conversations, expected = [], []
    for number in range(count):
        lines = system_prompt_of(corpus, tokenizer, tokens, seed + number).split("\n")
        thing, value = talk.random_fact(rng)
        lines.insert(rng.randint(0, len(lines)), f"The {thing} is {value}.")
        conversations.append(
            [{"role": "system", "content": "\n".join(lines)}, {"role": "user", "content": f"What is the {thing}?"}]
        )
        expected.append(talk.fact_answer(thing, value))
    given = answers(model, tokenizer, conversations, at_once=10)
    return sum(text == wanted for text, wanted in zip(given, expected, strict=True))


@torch.no_grad()
def bits_per_byte(model: Llama, tokenizer: Tokenizer, texts: list[str], length: int = 4096) -> float:
    """Of texts, each cut into windows that begin anew."""
    device = next(model.parameters()).device
    length = min(length, model.shape.context - 1)
    begin = tokenizer.token_to_id(BEGIN)
    bits, size = 0.0, 0
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        size += len(text.encode())
        for start in range(0, len(ids), length):
            window = torch.tensor([[begin, *ids[start : start + length]]], device=device)
            logits = model(window)[0, :-1].float()
            bits += F.cross_entropy(logits, window[0, 1:], reduction="sum").item() / math.log(2)
    return bits / max(size, 1)


@torch.no_grad()
def agreement(draft: Llama, model: Llama, tokenizer: Tokenizer, questions: list[Question]) -> float:
    """The share of the model's greedy tokens that the draft, at the same place, would have chosen too."""
    device = next(model.parameters()).device
    end = tokenizer.token_to_id(END)
    prompts = [prompt_ids(tokenizer, [{"role": "user", "content": question.question}]) for question in questions]
    same = total = 0
    for prompt, answer in zip(prompts, greedy(model, prompts, end), strict=True):
        whole = torch.tensor([[*prompt, *answer, end]], device=device)
        guesses = draft(whole)[0, len(prompt) - 1 : -1].argmax(-1)
        same += int((guesses == whole[0, len(prompt) :]).sum())
        total += len(guesses)
    return same / max(total, 1)
