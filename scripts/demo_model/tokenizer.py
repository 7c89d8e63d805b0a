"""The vocabulary: byte-level BPE without any surprise, so that it can also be read as tiktoken ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BEGIN, SYSTEM, USER, ASSISTANT, END = SPECIAL_TOKENS = (
    "<|begin|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)

# GPT-2's: contractions, then words, numbers and signs, each with one space before it, then white space.
SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = """\
{{- '<|begin|>' -}}
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant'] -%}
{{- raise_exception('the roles are system, user and assistant, not ' ~ message['role']) -}}
{%- endif -%}
{{- '<|' ~ message['role'] ~ '|>' -}}
{{- message['content'] -}}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""


def train_tokenizer(
    texts: Iterable[str],
    vocabulary: int,
    *,
    split: str = SPLIT,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    longest: int = 24,
) -> Tokenizer:
    """Learn a byte-level BPE vocabulary: all bytes, merges in the order of their ranks, and the special tokens last.

    Args:
        texts: What the merges are learnt from.
        vocabulary: How many tokens there are in all.
        split: The pattern of a word; no merge crosses a word's end.
        special_tokens: The tokens that only the chat template writes.
        longest: The most characters of a token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=longest,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the compact form: the file counts against the model's size."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def tokenizer_config(context: int) -> dict[str, object]:
    """tokenizer_config.json: nothing is added to a text, the chat template alone writes special tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }
