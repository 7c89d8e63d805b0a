"""Converts a byte-level BPE `tokenizer.json` to tiktoken ranks, which tokenize long texts several times faster.

tiktoken's ranks follow the order of merges and not the vocabulary's ids, so a table maps ranks to ids. `convert`
returns None for a tokenizer that tiktoken cannot reproduce; the caller checks the result on samples before using it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Set
from typing import Any

import tiktoken

_GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_PIECE = 65_536
"""Longer texts are converted in pieces of so many tokens, so that other threads can run."""


def byte_alphabet() -> dict[str, int]:
    """Character -> the byte that it stands for in a byte-level vocabulary (GPT-2's `bytes_to_unicode`, inverted)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_ALPHABET = byte_alphabet()


def bytes_of(token: str) -> bytes | None:
    """The bytes of a token as spelled in a byte-level vocabulary; None if it has other characters."""
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:
        return None


class FastEncoder:
    """tiktoken with the vocabulary's own ids. `ids`: rank -> id, None if they are equal."""

    def __init__(
        self, encoding: tiktoken.Encoding, ids: list[int] | None, normalize: Callable[[str], str] | None
    ) -> None:
        self._encoding = encoding
        self._ids = ids
        self._normalize = normalize

    def encode(self, text: str, recognised: Set[str]) -> list[int]:
        """Token ids of `text`. Only the added tokens in `recognised` are recognised in it."""
        if self._normalize is not None:
            text = self._normalize(text)
        if len(text) > _PIECE:
            return self._encode_long(text, recognised)
        ranks = self._encoding.encode(text, allowed_special=recognised, disallowed_special=())
        return ranks if self._ids is None else [self._ids[rank] for rank in ranks]

    def _encode_long(self, text: str, recognised: Set[str]) -> list[int]:
        """The same for long texts: ranks become Python integers piece by piece, so that other threads can run."""
        try:
            ranks = self._encoding.encode_to_numpy(text, allowed_special=set(recognised), disallowed_special=())
        except UnicodeEncodeError:  # a lone surrogate, which `encode` replaces by itself
            return self._encode_long(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), recognised)
        tokens: list[int] = []
        for start in range(0, len(ranks), _PIECE):
            piece: list[int] = ranks[start : start + _PIECE].tolist()
            tokens += piece if self._ids is None else [self._ids[rank] for rank in piece]
        return tokens


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """The regular expression that splits text into words; None if the pre-tokenizer is not a single one."""
    if pre_tokenizer is None:
        return None
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    if any(step["type"] == "ByteLevel" and step.get("add_prefix_space", True) for step in steps):
        return None
    match steps:
        case [{"type": "ByteLevel"} as step]:
            return _GPT2_PATTERN if step.get("use_regex", True) else None
        case [
            {"type": "Split", "pattern": {"Regex": str(regex)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel"} as step,
        ]:
            return None if step.get("use_regex", True) else regex
    return None


def _ranks(vocabulary: dict[str, int], merges: list[Any]) -> tuple[dict[bytes, int], list[int]] | None:
    """Bytes -> rank for tiktoken, and rank -> id; None if the vocabulary is not byte-level."""
    ranks: dict[bytes, int] = {}
    ids: list[int] = []
    for character, byte in sorted(_ALPHABET.items(), key=lambda item: item[1]):
        if character not in vocabulary:
            return None
        ranks[bytes([byte])] = len(ids)
        ids.append(vocabulary[character])
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        token = left + right
        raw = bytes_of(token)
        if raw is None or token not in vocabulary:
            return None
        if raw not in ranks:
            ranks[raw] = len(ids)
            ids.append(vocabulary[token])
    return ranks, ids


def _normalizer(step: dict[str, Any] | None) -> tuple[bool, Callable[[str], str] | None]:
    """Whether the normalizer is supported, and the function that does the same."""
    if step is None:
        return True, None
    if step["type"] in ("NFC", "NFKC"):
        form = step["type"]
        return True, lambda text: unicodedata.normalize(form, text)
    return False, None


def convert(tokenizer: dict[str, Any]) -> FastEncoder | None:
    """The encoder of a parsed `tokenizer.json`; None if it is not a plain byte-level BPE."""
    model = tokenizer["model"]
    pattern = _pattern(tokenizer.get("pre_tokenizer"))
    supported, normalize = _normalizer(tokenizer.get("normalizer"))
    if model.get("type") != "BPE" or pattern is None or not supported:
        return None
    if model.get("byte_fallback") or model.get("dropout") or model.get("continuing_subword_prefix"):
        return None
    added = tokenizer.get("added_tokens") or []
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added):
        return None
    ranks_and_ids = _ranks(model["vocab"], model["merges"])
    if ranks_and_ids is None:
        return None
    ranks, ids = ranks_and_ids
    specials = {}
    for token in added:
        specials[token["content"]] = len(ids)
        ids.append(token["id"])
    try:
        encoding = tiktoken.Encoding(
            "model", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials, explicit_n_vocab=None
        )
    except (ValueError, re.error):
        return None
    return FastEncoder(encoding, None if ids == list(range(len(ids))) else ids, normalize)
