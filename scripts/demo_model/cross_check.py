"""Compares our network with transformers' LlamaForCausalLM, where that is installed."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from .conversations import prompt_ids
from .evaluate import Question, greedy
from .export import read_folder
from .tokenizer import END


@torch.no_grad()
def compare_with_transformers(
    folder: Path, questions: list[Question], long_prompt: str, device: str
) -> dict[str, object] | None:
    """The largest difference of logits, and how many answers and prompts are the same; None without transformers."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  # optional
    except ImportError:
        return None
    ours, tokenizer = read_folder(folder, device)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    their_tokenizer = AutoTokenizer.from_pretrained(folder)
    conversations = [[{"role": "user", "content": question.question}] for question in questions]
    prompts = [prompt_ids(tokenizer, messages) for messages in conversations]
    rendered = [
        their_tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        for messages in conversations
    ]
    long_ids = prompt_ids(tokenizer, [{"role": "system", "content": long_prompt}, *conversations[0]])
    differences = []
    for ids in [*prompts[:10], long_ids]:
        batch = torch.tensor([ids], device=device)
        differences.append((ours(batch) - theirs(batch).logits).abs().max().item())
    return {
        "largest_logit_difference": max(differences),
        "same_prompts": sum(
            their_tokenizer(text)["input_ids"] == ids for text, ids in zip(rendered, prompts, strict=True)
        ),
        "same_answers": _same_answers(ours, theirs, tokenizer, prompts, device),
        "of": len(questions),
    }


def _same_answers(ours, theirs, tokenizer: Tokenizer, prompts: list[list[int]], device: str) -> int:
    end = tokenizer.token_to_id(END)
    width = max(map(len, prompts))
    padded = torch.tensor([[end] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    made = theirs.generate(
        padded, attention_mask=mask, max_new_tokens=160, do_sample=False, eos_token_id=end, pad_token_id=end
    )
    own = greedy(ours, prompts, end, 160)
    return sum(_until(row[width:].tolist(), end) == mine for row, mine in zip(made, own, strict=True))


def _until(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids
