"""The tokenizer and templates of a GGUF file give what those give from which it was written."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex as Pattern
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from gateway.served_models.served_model import ServedModel, load_served_model
from model_files.gguf_tokenizer import SPLITTINGS
from tests.engine.conftest import write_model
from tests.engine.gguf_files import write_gguf

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "models" / "stdlib-qa"
TEXTS = st.text() | st.text(alphabet="ab 's1234\n\r\té\u0301東  <|end|>.,/_AbC")
PROSE = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))[:12]]
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = [
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*",
]
SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
PUBLISHED = {
    "dbrx": LLAMA3,
    "deepseek-r1-qwen": ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL,
    "gpt-4o": f"{CASED[0]}{ENDS}?|{CASED[1]}{ENDS}?" + r"|\p{N}{1,3}" + SLASHED,
    "llama-bpe": LLAMA3,
    "qwen2": ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL,
    "tekken": f"{CASED[0]}|{CASED[1]}" + r"|\p{N}" + SLASHED,
}
"""How the families' own `tokenizer.json` split a text; the others split by GPT-2's way, which `tokenizers` has."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServedModel, ServedModel]:
    """The demo model, and the same from a GGUF file."""
    path = write_gguf(DEMO, tmp_path_factory.mktemp("demo") / "stdlib-qa.gguf", "Q8_0", tokenizer=DEMO)
    return load_served_model(DEMO), load_served_model(path)


@given(TEXTS)
def test_the_demo_models_tokens_are_its_own(demo: tuple[ServedModel, ServedModel], text: str):
    folder, file = demo
    assert file.tokenizer.literal(text) == folder.tokenizer.literal(text)
    assert file.tokenizer.content(text) == folder.tokenizer.content(text)


def test_the_demo_model_is_described_as_its_folder_is(demo: tuple[ServedModel, ServedModel]):
    folder, file = demo
    for field in ("name", "family", "context_tokens", "stop_tokens", "output_format"):
        assert getattr(file, field) == getattr(folder, field)
    assert file.template.source == folder.template.source
    assert file.template.special_tokens["eos_token"] == "<|end|>"
    assert file.tokenizer.fast
    assert file.tokenizer.opening == folder.tokenizer.opening
    assert [file.tokenizer.spelled(token) for token in range(4096)] == [
        folder.tokenizer.spelled(token) for token in range(4096)
    ]
    assert file.text_digest != folder.text_digest


def byte_level(pre: str) -> Tokenizer:
    """A byte-level tokenizer as the family of this `pre` publishes it, trained on our pages."""
    tokenizer = Tokenizer(models.BPE())
    splitting: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in PUBLISHED)
    if pre in PUBLISHED:
        splitting = pre_tokenizers.Sequence([pre_tokenizers.Split(Pattern(PUBLISHED[pre]), "isolated"), splitting])
    elif pre in {"smollm", "starcoder", "refact"}:
        splitting = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), splitting])
    tokenizer.pre_tokenizer = splitting
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(PROSE, trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.add_tokens(["<tool>", "  "])
    return tokenizer


def in_a_folder(tokenizer: Tokenizer, folder: Path) -> Path:
    """A folder with the tokenizer and a tiny model."""
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "bos_token": "<|begin|>", "chat_template": "{{ messages[0]['content'] }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    write_model(folder, vocab_size=tokenizer.get_vocab_size() + 4)
    return folder


@pytest.mark.parametrize("pre", SPLITTINGS)
def test_a_named_splitting_is_the_families_own(pre: str, tmp_path: Path):
    aliases = {"llama3": "llama-bpe", "llama-v3": "llama-bpe"}
    original = byte_level(aliases.get(pre, pre))
    folder = in_a_folder(original, tmp_path / "folder")
    changes = {"tokenizer.ggml.pre": pre}
    path = write_gguf(folder, tmp_path / "model.gguf", tokenizer=folder, changes=changes)
    read = load_served_model(path).tokenizer
    chance = random.Random(1)
    for text in [*PROSE[:4], *(noise(chance) for _ in range(300))]:
        assert read.literal(text) == original.encode(text, add_special_tokens=False).ids


def noise(chance: random.Random) -> str:
    """Letters of several scripts, digits, marks, white space, apostrophes and special tokens."""
    pieces = [
        *"aBcdé東λЖ ǅ12345.,;/'_-\n\r\t\u0301\u00a0\u3000𝟘²",
        "'ll",
        "'S",
        "  ",
        "<|end|>",
        "<tool>",
        "the ",
        "DEF",
    ]
    return "".join(chance.choice(pieces) for _ in range(chance.randrange(60)))


PIECE_TEXTS = st.text(alphabet="abcdefgh ▁éü東\n", max_size=40) | st.text(max_size=20)


def sentence_pieces() -> dict[str, float]:
    """A vocabulary as SentencePiece trains: each piece is two others, and the earlier has the higher score."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False)
    trained.train_from_iterator((line for page in PROSE for line in page.splitlines()), trainer)
    # Pieces of one letter were not merged, and come last.
    texts = sorted(trained.get_vocab().items(), key=lambda entry: (len(entry[0]) < 2, entry[1]))
    return {text: -float(rank) for rank, (text, _) in enumerate(texts)}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Llama's tokenizer as transformers makes it of a vocabulary with scores, and the same from a GGUF file."""
    from transformers.convert_slow_tokenizer import generate_merges

    scores = sentence_pieces()
    control = ["<unk>", "<s>", "</s>"]
    texts = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *scores]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(scores)
    vocabulary = {text: token for token, text in enumerate(texts)}
    model = models.BPE(
        vocabulary, generate_merges(vocabulary, scores), unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    original = Tokenizer(model)
    original.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    original.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    original.add_special_tokens(control)
    folder = tmp_path_factory.mktemp("pieces")
    changes = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0] * 259 + list(scores.values()),
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0]['content'] }}",
    }
    write_model(folder / "plain", vocab_size=len(texts))
    path = write_gguf(folder / "plain", folder / "pieces.gguf", changes=changes)
    return original, load_served_model(path)


@given(PIECE_TEXTS)
def test_sentence_pieces_are_merged_by_their_scores(pieces: tuple[Any, ServedModel], text: str):
    original, served = pieces
    tokens = served.tokenizer.literal(text)
    assert tokens == original.encode(text, add_special_tokens=False).ids
    assert served.tokenizer.decode(tokens) == original.decode(tokens)


def test_sentence_pieces_open_with_bos(pieces: tuple[Any, ServedModel]):
    original, served = pieces
    assert served.tokenizer.opening == [1]
    assert served.stop_tokens == (2,)
    for page in PROSE:
        assert served.tokenizer.literal(page) == original.encode(page, add_special_tokens=False).ids
