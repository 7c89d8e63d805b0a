"""Conversations as rows of tokens with what of them counts in the loss, made by many processes."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
import torch
from demo_model.conversations import ANSWER, ASKED, TEXT
from tokenizers import Tokenizer
from torch import Tensor

from . import values
from .conversations import Conversation, conversation
from .template import ASSISTANT, CALL, CHAT_TEMPLATE, END
from .tools import concepts

LENGTHS = (192, 320, 640, 1280)
"""Of rows. A conversation is in the shortest that holds it: nothing is seen of another."""


def compiled_template() -> jinja2.Template:
    """The model's own template."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(CHAT_TEMPLATE)


def texts(count: int, seed: str, hold_back: int, long_share: float = 0.12) -> list[tuple[Conversation, str]]:
    """Conversations and how the template renders them. `hold_back`: leave out every so manieth concept of the table."""
    rng, template = random.Random(seed), compiled_template()
    table = tuple(one for at, one in enumerate(concepts()) if not hold_back or at % hold_back)
    made = []
    for _ in range(count):
        talk = conversation(rng, 6 if rng.random() < long_share else 2, table)
        made.append((talk, template.render(messages=talk.messages, tools=talk.tools)))
    return made


def row_of(talk: Conversation, rendered: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens, and each one's class in the loss."""
    ids: list[int] = tokenizer.encode(rendered, add_special_tokens=False).ids
    assistant, end, call = (tokenizer.token_to_id(token) for token in (ASSISTANT, END, CALL))
    answers = iter([message for message in talk.messages if message["role"] == "assistant"])
    weights, learning, wanted = [], False, False
    for token in ids:
        if token == assistant:
            learning, wanted = True, bool(next(answers)["learn"])
            weights.append(ASKED)
            continue
        # In an answer that makes one of two calls, to end after it is the client's wish and not the model's.
        weights.append(ANSWER if learning and (wanted or token != end) else TEXT if not learning else ASKED)
        if token == end:
            learning = False
    assert next(answers, None) is None
    assert call is not None
    return ids, weights


_TOKENIZER: list[Tokenizer] = []


def _start(definition: str) -> None:
    tokenizer = Tokenizer.from_str(definition)
    _TOKENIZER.append(tokenizer)
    values.SPARE[:] = sorted(
        word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and word.islower() and len(word) > 1
    )


def _rows(task: tuple[int, str, int]) -> dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    count, seed, hold_back = task
    tokenizer = _TOKENIZER[0]
    end = tokenizer.token_to_id(END)
    by_length: dict[int, list[tuple[list[int], list[int]]]] = {length: [] for length in LENGTHS}
    for talk, rendered in texts(count, seed, hold_back):
        ids, weights = row_of(talk, rendered, tokenizer)
        length = next((length for length in LENGTHS if len(ids) <= length), None)
        if length is not None:
            padding = length - len(ids)
            by_length[length].append((ids + [end] * padding, weights + [ASKED] * padding))
    return {
        length: (
            np.array([row[0] for row in rows], dtype="int16").reshape(-1, length),
            np.array([row[1] for row in rows], dtype="uint8").reshape(-1, length),
        )
        for length, rows in by_length.items()
    }


@dataclass(frozen=True)
class Rows:
    """Rows of each length on the device. A step takes `tokens` tokens of one length."""

    by_length: dict[int, tuple[Tensor, Tensor]]
    tokens: int

    def endless(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (ids, loss classes), each row once before any comes again."""
        rng = random.Random(f"batches-{seed}")
        streams = {length: self._stream(*rows, seed) for length, rows in self.by_length.items() if len(rows[0])}
        shares = [self.by_length[length][0].numel() for length in streams]
        for _ in range(3):  # all shapes are met while the program compiles
            for stream in streams.values():
                yield next(stream)
        while True:
            yield next(streams[rng.choices(list(streams), shares)[0]])

    def _stream(self, ids: Tensor, weights: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        rows = max(1, min(self.tokens // ids.shape[1], ids.shape[0]))
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(ids.shape[0], generator=generator).to(ids.device)
            for start in range(0, len(order) - rows + 1, rows):
                chosen = order[start : start + rows]
                yield ids[chosen].long(), weights[chosen]


def make_rows(
    tokenizer: Tokenizer, count: int, tokens: int, seed: int, hold_back: int, device: str, processes: int
) -> Rows:
    """`count` conversations as rows on the device."""
    parts = processes * 8
    tasks = [(max(1, count // parts), f"rows-{seed}-{part}", hold_back) for part in range(parts)]
    with multiprocessing.Pool(processes, _start, (tokenizer.to_str(),)) as pool:
        made = pool.map(_rows, tasks, chunksize=1)
    joined = {}
    for length in LENGTHS:
        ids, weights = (np.concatenate([part[length][at] for part in made]) for at in (0, 1))
        joined[length] = (torch.from_numpy(ids).to(device), torch.from_numpy(weights).to(device))
    return Rows(joined, tokens)
