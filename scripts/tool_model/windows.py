"""Conversations as rows of tokens with what of them counts in the loss, made by many processes."""

from __future__ import annotations

import json
import multiprocessing
import random
import threading
from collections.abc import Iterator
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


Part = dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]


def _rows(task: tuple[int, str, int]) -> Part:
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


class Rows:
    """Rows of each length on the device, which may still be arriving. A step takes `tokens` tokens of one length."""

    def __init__(self, tokens: int, device: str) -> None:
        self.tokens, self.device = tokens, device
        self.by_length: dict[int, tuple[Tensor, Tensor]] = {}
        self.complete = threading.Event()

    def add(self, part: Part) -> None:
        """More rows of each length."""
        for length, arrays in part.items():
            ids, weights = (torch.from_numpy(array).to(self.device) for array in arrays)
            before = self.by_length.get(length)
            joined = (torch.cat((before[0], ids)), torch.cat((before[1], weights))) if before else (ids, weights)
            self.by_length[length] = joined

    def endless(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (ids, loss classes), drawn from what is there."""
        rng, generator = random.Random(f"batches-{seed}"), torch.Generator(self.device).manual_seed(seed)
        for _ in range(3):  # all shapes are met while the program compiles
            for length in LENGTHS:
                if len(self.by_length[length][0]):
                    yield self._batch(length, generator)
        while True:
            shares = [self.by_length[length][0].numel() for length in LENGTHS]
            yield self._batch(rng.choices(LENGTHS, shares)[0], generator)

    def _batch(self, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ids, weights = self.by_length[length]
        size = (max(1, self.tokens // length),)
        chosen = torch.randint(len(ids), size, generator=generator, device=ids.device)
        return ids[chosen].long(), weights[chosen]


def start_rows(
    tokenizer: Tokenizer, count: int, tokens: int, seed: int, hold_back: int, device: str, processes: int
) -> Rows:
    """`count` conversations as rows on the device. Returns when the first are there: the rest come meanwhile."""
    parts = max(processes, count // 3000)
    tasks = [(max(1, count // parts), f"rows-{seed}-{part}", hold_back) for part in range(parts)]
    rows, first = Rows(tokens, device), max(1, parts // 25)
    pool = multiprocessing.Pool(processes, _start, (tokenizer.to_str(),))
    arriving = pool.imap_unordered(_rows, tasks)
    for _ in range(first):
        rows.add(next(arriving))

    def receive() -> None:
        for part in arriving:
            rows.add(part)
        pool.close()
        rows.complete.set()

    threading.Thread(target=receive, daemon=True).start()
    return rows
