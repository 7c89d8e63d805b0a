"""A byte-level tokenizer of any size with made-up words, for grammars over models of random weights."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_END = "</s>"
_SIGNS = ('"', '":', '",', '"}', ', "', "{", '{"', "[", "]", ".", ",")


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write `tokenizer.json`, and `generation_config.json`, by which the last token ends an output."""
    chance = random.Random(vocabulary)
    tokens = dict.fromkeys(pre_tokenizers.ByteLevel.alphabet())
    while len(tokens) < vocabulary - 1:
        word = "".join(chance.choices(string.ascii_lowercase, k=chance.randrange(2, 9)))
        sign = chance.choice(_SIGNS) if chance.random() < 0.05 else ""
        tokens[chance.choice(("", "Ġ", "Ġ")) + word + sign.replace(" ", "Ġ")] = None
    ids = {token: id for id, token in enumerate([*tokens, _END])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(_END)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": vocabulary - 1}))
