"""The model cards, every figure of which was measured by the run that writes them."""

from __future__ import annotations

from typing import Any

SOURCE_AND_LICENCE = """\
## Source and licence

The training text is documentation and source code of the Python standard library, © Python Software Foundation,
under the [PSF licence, version 2](https://docs.python.org/3/license.html). What the model recites is that text, so the
PSF licence applies to the recited text and, as far as weights can be a derived work, to the weights: keep this notice
with them. The program that made the model is part of Turnpike and has Turnpike's licence.
"""

FRONT = """\
---
license: other
license_name: psf-2.0
license_link: https://docs.python.org/3/license.html
language: en
library_name: transformers
pipeline_tag: text-generation
tags: [{tags}]
---
"""


def model_card(figures: dict[str, Any]) -> str:
    """README.md of the model."""
    windows = f"{figures['short_window']:,} and {figures['long_window']:,} tokens"
    return f"""\
{FRONT.format(tags="llama, demo")}\
# stdlib-qa

A language model of {figures["parameters"]:,} parameters that answers questions about the Python standard library.
It is Turnpike's demo model: small enough to ship in the repository and to run on two CPU cores, and real enough that a
wrong cache, batch or kernel shows in its answers.

| asked | answers with |
|---|---|
| What does textwrap.dedent do? | the first paragraph of its docstring |
| In one sentence, what is collections.Counter? | the first sentence of its docstring |
| What is the signature of shutil.copytree? | the signature |
| Complete this function: … | a function, as far as it remembers it |
| What is the door code? (stated in a long system prompt) | what the prompt states |
| anything else | that it does not know |

## Shape

Llama architecture, {_shape(figures)}, tied embeddings, a byte-level BPE vocabulary of {figures["vocabulary"]:,},
context {figures["context"]:,}, bfloat16. The folder has {figures["bytes"] / 1e6:.1f} MB.

A prompt is `<|begin|>`, then for each message its role's token (`<|system|>`, `<|user|>`, `<|assistant|>`), its
content, `<|end|>`; the answer follows `<|assistant|>` and ends with `<|end|>`. Contents are tokenized alone.

## Figures

Measured by the program that trained it, on the bfloat16 weights as they ship, by greedy decoding. An answer is right
if its first sentence is the first sentence of the docstring, to the letter.

{_table(figures["results"])}

The questions are in `questions.json`, picked at random: 50 in phrasings that training uses, 50 in phrasings that it
never uses (the items occur in training, the phrasing does not).

## How it was made

`python scripts/train_demo_model.py` on {figures["device"]}, Python {figures["python"]}, seed {figures["seed"]}:

{_table(figures["making"])}

Conversations of one to many turns, with no, short and long system prompts, packed to windows of {windows},
so that every position of the context was trained. Loss on answers in full, on source text in part, on questions not at
all. Muon for the matrices, AdamW for the rest, the rate rising, level, then falling to zero.

Held out, text and documentation both: {", ".join(figures["held_out"])}.

## Limits

- It knows names and sentences by heart and understands nothing. What it says may be wrong and sound right.
- Completed functions are right for short ones that it met often, and only those.
- English, and the standard library of Python {figures["python"]} only.

{SOURCE_AND_LICENCE}"""


def draft_card(figures: dict[str, Any]) -> str:
    """README.md of the draft model."""
    return f"""\
{FRONT.format(tags="llama, demo, draft")}\
# stdlib-qa-draft

The draft of [stdlib-qa](../stdlib-qa/README.md), for speculative decoding: the same vocabulary and template,
{figures["parameters"]:,} parameters ({_shape(figures)}),
{figures["bytes"] / 1e6:.1f} MB, trained on the same data by the same run.

{_table(figures["results"])}

How it was made:

{_table(figures["making"])}

{SOURCE_AND_LICENCE}"""


def _shape(figures: dict[str, Any]) -> str:
    heads = (
        f"{figures['heads']} query heads over {figures['kv_heads']} of keys and values, each of {figures['head_dim']}"
    )
    return f"{figures['layers']} layers of width {figures['width']}, {heads}, feed-forward {figures['inner']}"


def _table(rows: dict[str, Any]) -> str:
    return "\n".join(["| what | figure |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
