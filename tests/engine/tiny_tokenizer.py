"""A byte-level tokenizer with as many tokens as the tiny models have, for grammars: what JSON is made of, and pairs."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.engine.families import VOCABULARY

END = 1
SPECIALS = ["<pad>", "</s>"]


def write_tokenizer(folder: Path) -> Path:
    """Write `tokenizer.json` into the folder."""
    letters = [*SPECIALS, *map(chr, range(33, 127)), "Ġ", "Ċ"]
    pairs = [(first, second) for first in '{"[,:' for second in '"abc01t['][: VOCABULARY - len(letters)]
    vocabulary = {token: id for id, token in enumerate([*letters, *map("".join, pairs)])}
    assert len(vocabulary) == VOCABULARY
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def text_of(folder: Path, tokens: list[int]) -> str:
    """What these tokens say, special ones left out."""
    return str(Tokenizer.from_file(str(folder / "tokenizer.json")).decode(tokens))
