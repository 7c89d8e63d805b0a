"""The `tokenizer.json` and `tokenizer_config.json` that a GGUF file's metadata amounts to.

Two kinds of vocabularies are known: byte-level BPE (`gpt2`) with its merges, whose way to split a text into words has a
name, `tokenizer.ggml.pre`; and SentencePiece's BPE (`llama`), whose merges follow from the tokens' scores. Only names
whose splitting is known exactly are read; another one is refused, since it would give other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_files.gguf_file import GgufModel
from model_files.gguf_values import GgufError

_NORMAL, _UNKNOWN, CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_PREFIX = "tokenizer.ggml."
_MOST_TOKENS, _MOST_CHARACTERS, _LONGEST_MERGED = 1 << 21, 1 << 24, 256
_MOST_MERGES = 1 << 20
"""Ways to make tokens of two, of which a vocabulary of chosen tokens has very many: Gemma 3's, the largest that is
published, has half as many."""
_SPACE = "▁"
_MOST_TEMPLATES = 64


@dataclass(frozen=True)
class _Splitting:
    """How a text is split into words. `pattern`: by a regular expression, in which each match is a word; None for
    single digits, then GPT-2's. `normal_form`: what the text is brought to before. `ignores_merges`: a word that is a
    token is that token. `opens`: BOS comes first unless the metadata says otherwise."""

    pattern: str | None
    normal_form: str | None = None
    ignores_merges: bool = False
    opens: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}{some}{_LOWER}{more}" for some, more in ("*+", "+*")]
_TEKKEN = "|".join(_CASED) + r"|\p{N}" + _SLASHED
_GPT4O = "|".join(f"{word}{_ENDINGS}?" for word in _CASED) + r"|\p{N}{1,3}" + _SLASHED

_BY_LLAMA3 = _Splitting(_LLAMA3, ignores_merges=True, opens=True)
SPLITTINGS: Mapping[str, _Splitting] = {
    "dbrx": _Splitting(_LLAMA3),
    "deepseek-r1-qwen": _Splitting(_QWEN2),
    "gpt-2": _Splitting(_GPT2),
    "gpt-4o": _Splitting(_GPT4O),
    "llama-bpe": _BY_LLAMA3,
    "llama-v3": _BY_LLAMA3,
    "llama3": _BY_LLAMA3,
    "phi-2": _Splitting(_GPT2),
    "qwen2": _Splitting(_QWEN2, normal_form="NFC"),
    "refact": _Splitting(None),
    "smollm": _Splitting(None),
    "starcoder": _Splitting(None),
    "tekken": _Splitting(_TEKKEN, ignores_merges=True, opens=True),
}
"""`tokenizer.ggml.pre` -> how it splits"""


@dataclass(frozen=True)
class _Vocabulary:
    """The tokens' texts and kinds, in the order of ids."""

    texts: Sequence[str]
    kinds: Sequence[float]

    def is_added(self, token: int) -> bool:
        """Whether it is recognised as a whole, before a text is split. An empty one cannot be; it takes its id."""
        return self.kinds[token] in (CONTROL, _UNKNOWN, _USER_DEFINED) and self.texts[token] != ""

    def ids(self) -> dict[str, int]:
        """The ids of the tokens that a model's vocabulary lists: all up to the last that is not added."""
        last = max((token for token in range(len(self.texts)) if not self.is_added(token)), default=-1)
        return {self.texts[token]: token for token in range(last, -1, -1)}

    def added(self) -> list[dict[str, Any]]:
        """The entries of `added_tokens`."""
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return [
            {"id": token, "content": self.texts[token], **plain, "special": self.kinds[token] != _USER_DEFINED}
            for token in range(len(self.texts))
            if self.is_added(token)
        ]


def special_id(model: GgufModel, name: str) -> int | None:
    """The id of the token of this role (`bos`, `eos`, …); None if there is none. Raises GgufError."""
    token = model.values.get(f"{_PREFIX}{name}_token_id")
    if token is None or token in (-1, 0xFFFFFFFF):
        return None
    count = len(model.texts(f"{_PREFIX}tokens"))
    if type(token) is not int or not 0 <= token < count:
        raise GgufError(f"{model.path}: {_PREFIX}{name}_token_id is {token!r}, not one of {count} tokens")
    return token


def tokenizer_json(model: GgufModel) -> dict[str, Any]:
    """The model's `tokenizer.json`. Raises GgufError that names what is missing, contradictory or not supported."""
    vocabulary = _vocabulary(model)
    kind = model.values.get(f"{_PREFIX}model")
    if kind == "gpt2":
        parts = _byte_level(model, vocabulary)
    elif kind == "llama":
        parts = _sentence_piece(model, vocabulary)
    else:
        raise GgufError(f"{model.path}: {_PREFIX}model {kind!r} is not supported (gpt2 and llama are)")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added(),
        "post_processor": _post_processor(model, vocabulary),
        **parts,
    }


def tokenizer_config_json(model: GgufModel) -> dict[str, Any]:
    """The model's `tokenizer_config.json`: its special tokens and chat templates."""
    texts = model.texts(f"{_PREFIX}tokens")
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator"}
    tokens = {
        f"{role}_token": texts[token] for role, name in roles.items() if (token := special_id(model, name)) is not None
    }
    templates = {"default": model.values.get("tokenizer.chat_template")}
    names = model.texts("tokenizer.chat_templates")
    if len(names) > _MOST_TEMPLATES:
        raise GgufError(f"{model.path}: tokenizer.chat_templates has {len(names)} names, more than {_MOST_TEMPLATES}")
    for name in names:
        templates[name] = model.values.get(f"tokenizer.chat_template.{name}")
    listed = [{"name": name, "template": text} for name, text in templates.items() if isinstance(text, str)]
    return {**tokens, **({"chat_template": listed} if listed else {})}


def _vocabulary(model: GgufModel) -> _Vocabulary:
    texts, kinds = model.texts(f"{_PREFIX}tokens"), model.numbers(f"{_PREFIX}token_type")
    if not texts or len(texts) > _MOST_TOKENS or sum(map(len, texts)) > _MOST_CHARACTERS:
        raise GgufError(
            f"{model.path}: {_PREFIX}tokens has {len(texts)} tokens of {sum(map(len, texts))} characters, not 1 to"
            f" {_MOST_TOKENS} of {_MOST_CHARACTERS} together"
        )
    kinds = kinds or [_NORMAL] * len(texts)
    if len(kinds) != len(texts):
        raise GgufError(f"{model.path}: {_PREFIX}token_type has {len(kinds)} entries for {len(texts)} tokens")
    count = len(texts)
    while count > 1 and kinds[count - 1] == _UNUSED and texts[count - 1] == f"[PAD{count - 1}]":
        count -= 1  # what fills the rows of the embedding is no token
    texts, kinds = texts[:count], kinds[:count]
    if _is_gemma(model):
        # Converters take its runs of spaces for user-defined tokens. They are pieces like others, and are merged.
        runs = [token for token, text in enumerate(texts) if " " in text and not text.strip(" ")]
        for token in runs:
            texts[token], kinds[token] = _SPACE * len(texts[token]), _NORMAL
    if len(set(texts)) != count:
        raise GgufError(f"{model.path}: {_PREFIX}tokens has a token twice")
    return _Vocabulary(texts, kinds)


def _is_gemma(model: GgufModel) -> bool:
    return str(model.values.get("general.architecture")).startswith("gemma")


def _byte_level(model: GgufModel, vocabulary: _Vocabulary) -> dict[str, Any]:
    name = model.values.get(f"{_PREFIX}pre")
    splitting = SPLITTINGS.get(str(name))
    if splitting is None:
        supported = ", ".join(SPLITTINGS)
        raise GgufError(f"{model.path}: {_PREFIX}pre {name!r} is not supported (supported: {supported})")
    listed = model.texts(f"{_PREFIX}merges")
    if len(listed) > _MOST_MERGES:
        raise GgufError(f"{model.path}: {_PREFIX}merges has {len(listed)} entries, more than {_MOST_MERGES}")
    merges = [merge.split(" ") for merge in listed]
    ids = vocabulary.ids()
    for merge in merges:
        if len(merge) != 2 or not (merge[0] in ids and merge[1] in ids and merge[0] + merge[1] in ids):
            raise GgufError(f"{model.path}: {_PREFIX}merges has {' '.join(merge)[:64]!r}, which makes no token of two")
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if splitting.pattern is None:
        steps = [{"type": "Digits", "individual_digits": True}, {**by_bytes, "use_regex": True}]
    else:
        pattern = {"Regex": splitting.pattern}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        steps = [split, {**by_bytes, "use_regex": False}]
    return {
        "normalizer": None if splitting.normal_form is None else {"type": splitting.normal_form},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {**by_bytes, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": splitting.ignores_merges,
            "vocab": ids,
            "merges": merges,
        },
    }


def _sentence_piece(model: GgufModel, vocabulary: _Vocabulary) -> dict[str, Any]:
    scores = model.numbers(f"{_PREFIX}scores")
    if _is_gemma(model):  # whose scores do not follow the order of merges; that of its tokens does
        scores = [-float(token) for token in range(len(vocabulary.texts))]
    if len(scores) < len(vocabulary.texts):
        raise GgufError(f"{model.path}: {_PREFIX}scores has {len(scores)} entries for {len(vocabulary.texts)} tokens")
    unknown = special_id(model, "unknown")
    opened = model.values.get(f"{_PREFIX}add_space_prefix", True)
    marked = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepended = {"type": "Prepend", "prepend": _SPACE}
    decoding: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if opened:
        decoding.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepended, marked]} if opened else marked,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoding},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None or unknown >= len(vocabulary.texts) else vocabulary.texts[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary.ids(),
            "merges": _merges(model, vocabulary, scores),
        },
    }


def _merges(model: GgufModel, vocabulary: _Vocabulary, scores: Sequence[float]) -> list[list[str]]:
    """Each way to make a token of two, the token with the highest score first. Raises GgufError for too many."""
    normal = {
        text: token
        for token, text in enumerate(vocabulary.texts)
        if vocabulary.kinds[token] not in (CONTROL, _UNKNOWN, _BYTE)
    }
    found = []
    for text, token in normal.items():
        if not 1 < len(text) <= _LONGEST_MERGED:
            continue
        pairs = ((text[:at], text[at:]) for at in range(1, len(text)))
        found += [
            (-scores[token], len(left), len(right), normal[left], normal[right], left, right)
            for left, right in pairs
            if left in normal and right in normal
        ]
        if len(found) > _MOST_MERGES:
            raise GgufError(f"{model.path}: {_PREFIX}tokens has more than {_MOST_MERGES} ways to make tokens of two")
    found.sort()
    return [[left, right] for *_, left, right in found]


def _post_processor(model: GgufModel, vocabulary: _Vocabulary) -> dict[str, Any] | None:
    """What puts BOS before a text; None if it begins without."""
    splitting = SPLITTINGS.get(str(model.values.get(f"{_PREFIX}pre")))
    by_default = splitting.opens if model.values.get(f"{_PREFIX}model") == "gpt2" and splitting else True
    bos = special_id(model, "bos")
    if bos is None or bos >= len(vocabulary.texts) or not model.values.get(f"{_PREFIX}add_bos_token", by_default):
        return None
    text = vocabulary.texts[bos]
    opening, whole = {"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [opening, whole],
        "pair": [opening, whole, {**opening}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
    }
