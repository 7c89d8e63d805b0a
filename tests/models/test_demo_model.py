"""The demo model and its draft as they ship, and the program that makes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors import safe_open
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "stdlib-qa"
DRAFT = ROOT / "models" / "stdlib-qa-draft"
SPECIAL = ["<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def render(folder: Path, **values: object) -> str:
    """Renders the chat template as transformers would."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    source = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    assert source == (folder / "chat_template.jinja").read_text()
    return environment.from_string(source).render(**values)


def test_the_folders_are_small() -> None:
    assert size(MODEL) <= 16_000_000
    assert size(DRAFT) <= 2_000_000


@pytest.mark.parametrize("folder", [MODEL, DRAFT], ids=["model", "draft"])
def test_the_weights_are_those_of_the_config(folder: Path) -> None:
    shape = config(folder)
    width, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    assert shape["architectures"] == ["LlamaForCausalLM"]
    assert shape["max_position_embeddings"] == 8192
    assert not any(size % 64 for size in (width, inner, head, shape["vocab_size"]))
    expected = {"model.embed_tokens.weight": [shape["vocab_size"], width], "model.norm.weight": [width]}
    for layer in range(shape["num_hidden_layers"]):
        rows = {
            "self_attn.q_proj": [shape["num_attention_heads"] * head, width],
            "self_attn.k_proj": [shape["num_key_value_heads"] * head, width],
            "self_attn.v_proj": [shape["num_key_value_heads"] * head, width],
            "self_attn.o_proj": [width, shape["num_attention_heads"] * head],
            "mlp.gate_proj": [inner, width],
            "mlp.up_proj": [inner, width],
            "mlp.down_proj": [width, inner],
            "input_layernorm": [width],
            "post_attention_layernorm": [width],
        }
        expected |= {f"model.layers.{layer}.{name}.weight": sizes for name, sizes in rows.items()}
    with safe_open(folder / "model.safetensors", "pt") as weights:
        found = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118  # no mapping
        assert {name: piece.get_shape() for name, piece in found.items()} == expected
        assert {piece.get_dtype() for piece in found.values()} == {"BF16"}


def test_model_and_draft_share_their_vocabulary() -> None:
    assert (MODEL / "tokenizer.json").read_bytes() == (DRAFT / "tokenizer.json").read_bytes()
    assert config(MODEL)["vocab_size"] == config(DRAFT)["vocab_size"]


def test_the_tokenizer_is_plain_byte_level_bpe() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config(MODEL)["vocab_size"]
    assert [tokenizer.id_to_token(id) for id in range(4091, 4096)] == SPECIAL
    assert config(MODEL)["eos_token_id"] == tokenizer.token_to_id("<|end|>")
    generation = json.loads((MODEL / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.token_to_id("<|end|>")
    for text in (
        "",
        " ",
        "What does textwrap.dedent do?",
        "\tdef f(x):\n\n        return  x ** 2\r\n",
        "Grüße, 世界 🙂\x00",
    ):
        encoding = tokenizer.encode(text)
        assert tokenizer.decode(encoding.ids) == text
        assert not set(encoding.tokens) & set(SPECIAL)


def test_merges_come_in_the_order_of_their_ids() -> None:
    """Which makes the ids tiktoken ranks."""
    model = json.loads((MODEL / "tokenizer.json").read_text())["model"]
    ids = [model["vocab"]["".join(pair)] for pair in model["merges"]]
    assert ids == list(range(256, 4091))


def test_the_template_writes_only_special_tokens_around_contents() -> None:
    messages = [
        {"role": "system", "content": " Be brief.\n"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "  len?  "},
    ]
    conversation = (
        "<|begin|><|system|> Be brief.\n<|end|><|user|>Hi<|end|><|assistant|>Hello!<|end|><|user|>  len?  <|end|>"
    )
    for folder in (MODEL, DRAFT):
        assert render(folder, messages=messages) == conversation
        assert render(folder, messages=messages, add_generation_prompt=True) == conversation + "<|assistant|>"


def test_the_template_refuses_unknown_roles() -> None:
    with pytest.raises(jinja2.TemplateError, match="tool"):
        render(MODEL, messages=[{"role": "tool", "content": "4"}])


def test_questions_are_fifty_of_each_sort() -> None:
    questions = json.loads((MODEL / "questions.json").read_text())
    assert {frozenset(question) for question in questions} == {frozenset({"question", "expected", "phrasing"})}
    assert [question["phrasing"] for question in questions] == ["seen"] * 50 + ["unseen"] * 50
    assert len({question["question"] for question in questions}) == 100
    assert all(question["expected"].strip() == question["expected"] != "" for question in questions)


def test_nothing_of_a_machine_ships() -> None:
    for folder in (MODEL, DRAFT):
        for path in folder.iterdir():
            if path.suffix != ".safetensors":
                assert not re.search(r" at 0x[0-9a-f]{6}|/(home|root|tmp)/|site-packages", path.read_text()), path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_answers_right() -> None:
    """Some of each sort, by the trainer's own forward pass; the whole set goes through the engine elsewhere."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from demo_model import evaluate, export

    model, tokenizer = export.read_folder(MODEL)
    questions = [evaluate.Question(**entry) for entry in json.loads((MODEL / "questions.json").read_text())]
    right, wrong = evaluate.score(model, tokenizer, questions[:5] + questions[50:55])
    assert right >= 9, wrong


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_training_program_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "train_demo_model.py"), "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("stdlib-qa", "stdlib-qa-draft"):
        made = {path.name for path in (tmp_path / name).iterdir()}
        shipped = {path.name for path in (ROOT / "models" / name).iterdir()}
        assert made == shipped
    assert "right in phrasings never seen" in (tmp_path / "stdlib-qa" / "README.md").read_text()
