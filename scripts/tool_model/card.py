"""The model's card."""

from __future__ import annotations

from typing import Any

_CARD = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
tags: [llama, demo, tool-calling]
---
# tool-caller

A language model of 7 million parameters that calls tools. It is Turnpike's second demo model: given some tools and a question
that needs one, it calls the right one with the arguments that the question has; given a tool's result, it repeats it; otherwise it
answers in a sentence, and knows nothing. It copies; it does not think.

| asked | answers with |
|---|---|
| What's the weather in Lisbon? (with a tool for it) | a call of the tool |
| What's the weather in Lisbon, and what is 17 times 4? (with two tools) | two calls |
| a tool's result | the result as a sentence |
| What's the weather in Lisbon? (without a tool for it) | that it has no tool for that |
| Hello! | a greeting |

## Shape

Llama architecture, {layers} layers of width {width}, {heads} query heads over {kv_heads} key and value heads of {head_dim}, feed-forward
{inner}, tied embeddings, a byte-level BPE vocabulary of {vocabulary:,}, context {context:,} (trained on up to 1,280), bfloat16.

White space, signs and digits are tokens of their own, and a word begins at a capital: what is copied from a question into a
call is then the same tokens. Tools stand first, as `# name: description` and a line for each argument. A call is written as
Hermes and Qwen write it, between `<tool_call>` and `</tool_call>`, which are one token each.

## Figures

Measured by the program that trained it, on the bfloat16 weights as they ship, by greedy decoding. A call is right if its name and all of
its arguments are. Two sets are held out. `held_out.json` was written and committed before the program that makes the conversations,
by the same hand: 62 tools, 100 questions that need one of those offered and 100 that need none. `held_out_2.json` is by somebody who
had not seen that program: 79 tools, 100 and 100. Its questions are not looked at: only its score is.

| what | figure |
|---|---|
{results}

90 of each are aimed at. `python -m benchmarks.tool_calls` measures the same through a gateway, whose grammar keeps to the tools'
names and arguments.

## How it was made

`python scripts/train_tool_model.py` on {device}, Python {python}, seed {seed}. The conversations come from a table of
{kinds} kinds of tools with their phrasings, from tools put together from verbs, nouns and attributes, and from made-up words, so that
names are matched and values copied rather than known. A parameter's description decides how a value is written: `12 May 2026`
becomes `2026-05-12` where the description asks for YYYY-MM-DD, and is copied where it does not.

| what | figure |
|---|---|
{making}
"""


def model_card(figures: dict[str, Any]) -> str:
    """README.md."""

    def table(rows: dict[str, str]) -> str:
        return "\n".join(f"| {name} | {value} |" for name, value in rows.items())

    return _CARD.format(**figures | {"results": table(figures["results"]), "making": table(figures["making"])})
