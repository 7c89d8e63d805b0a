"""What `config.json` leaves out or says beside what we read: as transformers takes it, or refused by name."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from structlog.testing import capture_logs

from engine.errors import ModelError
from engine.models.registry import FAMILIES as SUPPORTED
from engine.models.registry import LANGUAGE_PARTS, read_config
from gateway.served_models.served_model import DEFAULT_CONTEXT_TOKENS
from tests.engine.conftest import Families, generate, make_bench, write_model
from tests.engine.families import FAMILIES, VOCABULARY, in_hub_style, write_multimodal
from tests.fast import only_some

PROMPT = [(7 * i * i + 3 * i) % VOCABULARY for i in range(100)]


@pytest.fixture(scope="module", autouse=True)
def quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def class_fields(model_type: str) -> dict[str, Any]:
    """Each field of transformers' class for this type and its default, by the name that files have."""
    from transformers import AutoConfig

    made = type(AutoConfig.for_model(model_type))
    return {made.attribute_map.get(each.name, each.name): each.default for each in fields(made)}


WITHOUT_CLASS = {"kimi_k2": "deepseek_v3"}
"""Types that transformers has no class of, and whose class they take."""
WITH_CLASS = [name for name in SUPPORTED if name not in WITHOUT_CLASS]


@pytest.mark.parametrize("model_type", WITH_CLASS)
def test_every_default_is_that_of_the_class(model_type: str):
    from transformers import AutoConfig

    made = AutoConfig.for_model(model_type)
    ours, theirs = SUPPORTED[model_type].config_class, class_fields(model_type)
    names = {**theirs, **{alias: theirs[name] for alias, name in made.attribute_map.items()}}
    for name, default in ours.defaults.items():
        assert (name, default) == (name, names.get(name))
    theta = made.default_theta
    if isinstance(theta, dict):
        assert (ours.rope_theta, ours.local_theta) == (theta["global"], theta["local"])
    else:
        assert (ours.rope_theta, ours.local_theta) == (theta, None)
        standing = {**made.rope_parameters}
        assert standing.pop("rope_theta") == theta
        assert {"rope_type": "default", **ours.rope} == {
            name: value for name, value in standing.items() if (name, value) != ("partial_rotary_factor", 1.0)
        }


def test_gateways_take_the_same_contexts():
    """They read the folder by themselves, and may not ask the engine's tables."""
    ours = {name: family.config_class.defaults["max_position_embeddings"] for name, family in SUPPORTED.items()}
    assert ours | {name: ours[part] for name, part in LANGUAGE_PARTS.items()} == DEFAULT_CONTEXT_TOKENS


@pytest.mark.parametrize(("model_type", "other"), WITHOUT_CLASS.items())
def test_a_type_without_a_class_is_configured_as_another_is(model_type: str, other: str):
    assert SUPPORTED[model_type].config_class == replace(SUPPORTED[other].config_class, model_type=model_type)


@pytest.mark.parametrize("model_type", WITH_CLASS)
def test_every_field_of_the_class_is_known(model_type: str):
    """A field that a later transformers adds must be looked at: does it change the answer?"""
    ours, theirs = SUPPORTED[model_type].config_class, class_fields(model_type)
    assert not theirs.keys() - ours.read - ours.all_fixed.keys() - ours.all_ignored
    assert MISSING not in theirs.values()
    for name, values in ours.all_fixed.items():
        assert theirs.get(name) in values, f"{name}: the class's own default would be refused"


# ---------------------------------------------------------------- what is left out


def linked(folder: Path, to: Path, config: dict[str, Any]) -> Path:
    """A folder with the same weights and another configuration."""
    to.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.name != "config.json" and not (to / file.name).exists():
            (to / file.name).symlink_to(file)
    (to / "config.json").write_text(json.dumps(config))
    return to


_answers: dict[tuple[str, ...], torch.Tensor | None] = {}
"""What transformers answered, by the weights and by the configuration that it made of `config.json`."""


def by_transformers(folder: Path) -> torch.Tensor | None:
    """The logits after the prompt; None where transformers refuses the folder, or makes up or leaves out weights.

    Many files come to one configuration, with which it is asked once.
    """
    from transformers import AutoConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = AutoConfig.from_pretrained(folder)
        except Exception:  # whatever it refuses with
            return None
    weights = sorted(str(file.resolve()) for file in folder.glob("*.safetensors"))
    assert weights
    made = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
    key = (type(config).__name__, json.dumps(made, sort_keys=True, default=repr), *weights)
    if key not in _answers:
        _answers[key] = _answer_of_transformers(folder)
    return _answers[key]


def _answer_of_transformers(folder: Path) -> torch.Tensor | None:
    from transformers import AutoModelForCausalLM

    # Weights that it makes up are not looked at, and without a field that says a size there are a billion of them.
    made_up = mock.patch.object(torch.nn.init, "_no_grad_normal_", lambda tensor, *_: tensor)
    with warnings.catch_warnings(), made_up:
        warnings.simplefilter("ignore")
        try:
            model, info = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
            if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
                return None
            with torch.no_grad():
                return model(torch.tensor([PROMPT])).logits[0, -1]
        except Exception:  # whatever it refuses with
            return None


def by_us(folder: Path) -> torch.Tensor | str:
    """The same; the message where we refuse the folder."""
    try:
        return make_bench(folder, context=512).one(generate("a", PROMPT, 1)).logits[0]
    except ModelError as error:
        return str(error)


def assert_same(folder: Path, without: str) -> bool:
    """Whether both answer; they answer alike, or we refuse by name what transformers cannot load."""
    theirs, ours = by_transformers(folder), by_us(folder)
    if theirs is None:
        assert isinstance(ours, str), f"without {without} transformers does not load it, and we do"
        assert any(word in ours for word in ("field", "tensor", "num_attention_heads", "model_type")), ours
        return False
    assert not isinstance(ours, str), f"without {without} transformers loads it, and we refuse: {ours}"
    difference = (ours - theirs).abs().max().item()
    assert difference < 1e-4, f"without {without} the logits differ by {difference}"
    return True


def without_each(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configuration without each of its fields in turn, also those of objects within it.

    But `pad_token_id`, in whose place transformers takes one that these small vocabularies do not have.
    """
    for name, value in config.items():
        if name == "pad_token_id":
            continue
        yield ".".join((*path, name)), {other: kept for other, kept in config.items() if other != name}
        if isinstance(value, dict) and name not in {"id2label", "label2id", "vision_config"}:
            for inner, changed in without_each(value, (*path, name)):
                yield inner, {**config, name: changed}


SOME = ("mixtral", "gpt-oss", "qwen3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "style"),
    only_some(
        *((name, "version 5") for name in FAMILIES),
        *((name, "hub") for name in SOME),
        of=[(name, style) for name in FAMILIES for style in ("version 5", "hub")],
    ),
)
def test_without_any_field_it_is_the_model_that_transformers_makes(
    name: str, style: str, family_folders: Families, tmp_path: Path
):
    folder = family_folders(name)
    config = json.loads((folder / "config.json").read_text())
    if style == "hub":
        config = in_hub_style(config)
    answered = [
        assert_same(linked(folder, tmp_path / "model", changed), without) for without, changed in without_each(config)
    ]
    assert sum(answered) > 10
    assert not all(answered)


@pytest.mark.slow
def test_without_any_field_a_language_part_is_the_one_that_transformers_makes(tmp_path: Path):
    folder = write_multimodal(tmp_path / "whole")
    config = json.loads((folder / "config.json").read_text())
    answered = [
        assert_same(linked(folder, tmp_path / "model", changed), without)
        for without, changed in without_each(config)
        if without.startswith("text_config")
    ]
    assert sum(answered) > 10
    assert not all(answered)


# ---------------------------------------------------------------- what is said


def others(value: object) -> list[object]:
    """Values in place of this one."""
    match value:
        case bool():
            return [not value]
        case int() | float():
            return [value + 1, value * 2]
        case list():
            return [[], value[::-1]]
    return []


def with_each(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configuration with another value of each of its fields in turn, also those of objects within it."""
    for name, value in config.items():
        # Where our longrope takes its long factors is said in `RopeConfig.stretched`.
        if name in {"original_max_position_embeddings", "id2label", "label2id"}:
            continue
        if isinstance(value, dict):
            for inner, changed in with_each(value, (*path, name)):
                yield inner, {**config, name: changed}
        for other in others(value):
            yield ".".join((*path, name)), {**config, name: other}


@pytest.mark.slow
@pytest.mark.parametrize("name", only_some(*SOME, of=FAMILIES, every=2))
def test_no_field_that_changes_the_answer_is_overlooked(name: str, family_folders: Families, tmp_path: Path):
    """Where both answer with another value of a field, they answer alike."""
    folder = family_folders(name)
    config = json.loads((folder / "config.json").read_text())
    both = 0
    for changed, other in with_each(config):
        made = linked(folder, tmp_path / "model", other)
        ours = by_us(made)
        theirs = None if isinstance(ours, str) else by_transformers(made)  # which takes longer
        if theirs is not None:
            assert (ours - theirs).abs().max() < 1e-4, f"with another {changed} the logits differ"
            both += 1
    assert both > 10


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_a_field_that_would_change_the_answer_is_refused(model_type: str, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": model_type, "num_experts_per_tok": 1}))
    read_config(tmp_path)
    fixed = SUPPORTED[model_type].config_class.all_fixed
    assert {"use_bidirectional_attention", "per_layer_config", "is_encoder_decoder", "clip_qkv"} <= fixed.keys()
    for name, values in fixed.items():
        for value in values:
            path.write_text(json.dumps({"model_type": model_type, "num_experts_per_tok": 1, name: value}))
            read_config(tmp_path)
        path.write_text(json.dumps({"model_type": model_type, "num_experts_per_tok": 1, name: 7}))
        with pytest.raises(ModelError, match=rf"config\.json: field {name} 7 is not supported for .* {model_type}"):
            read_config(tmp_path)


def test_attention_to_what_comes_later_is_refused(family_folders: Families, tmp_path: Path):
    """It is another answer in transformers, so it cannot be left aside."""
    folder = family_folders("gemma3")
    config = {**json.loads((folder / "config.json").read_text()), "use_bidirectional_attention": True}
    assert (by_transformers(linked(folder, tmp_path / "model", config)) - by_transformers(folder)).abs().max() > 1e-3
    assert "field use_bidirectional_attention True is not supported" in by_us(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification does not write text"),
        ({"partial_rotary_factor": 0.5}, "field partial_rotary_factor 0.5 is not supported for model_type llama"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope parameters of full_attention alone"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "field factor is missing for yarn"),
        ({"model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'linear' is not supp"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e4}}, "must have full_attention and sliding"),
        ({"model_type": "mixtral", "num_experts": 4, "num_local_experts": 8}, "mean the same and differ"),
        ({"model_type": "phi3", "layer_types": ["sliding_attention"] * 2}, "whose layers are all full_attention"),
        (
            {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 2},
            "sliding_attention without a sliding_window in use",
        ),
    ],
)
def test_what_contradicts_the_class_is_named(changes: dict[str, Any], message: str, tmp_path: Path):
    folder = write_model(tmp_path / "model", **changes)
    assert message in by_us(folder)


def test_scaling_counts_before_parameters_as_in_transformers(family_folders: Families, tmp_path: Path):
    folder = family_folders("llama")
    config = json.loads((folder / "config.json").read_text())
    config["rope_scaling"] = {"rope_type": "linear", "factor": 4.0}
    assert assert_same(linked(folder, tmp_path / "model", config), "nothing")


def test_fields_that_are_not_known_are_named_in_a_warning(tmp_path: Path):
    known = {"initializer_range": 0.02, "use_cache": True, "rope_scaling": {"type": "linear", "factor": 2.0}}
    folder = write_model(tmp_path / "model", **known)
    with capture_logs() as logs:
        read_config(folder)
    assert not logs
    write_model(folder, **{**known, "rope_scaling": {"type": "linear", "factor": 2.0, "swirl": 2}}, embedding_swirl=7)
    with capture_logs() as logs:
        read_config(folder)
    assert [(log["log_level"], log["fields"]) for log in logs] == [
        ("warning", ["embedding_swirl", "rope_scaling.swirl"])
    ]


# ---------------------------------------------------------------- which kind of model it is


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt2", "n_embd": 768}, "model_type 'gpt2' is not supported (supported: "),
        ({"model_type": "bloom", "n_layer": 2, "hidden_size": "x"}, "model_type 'bloom' is not supported (supported: "),
        ({"hidden_size": 8}, "field model_type is missing (supported: "),
        (
            {"model_type": "llava", "text_config": {"model_type": "llama"}, "vision_config": {}},
            "model_type 'llava' is not supported: it is a model around a language model of model_type 'llama'",
        ),
        ({"model_type": "qwen2_vl", "vision_config": {}}, "model_type 'qwen2_vl' is not supported (supported: "),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3n_text"}},
            "field text_config: model_type 'gemma3n_text' is not supported (gemma3_text is)",
        ),
    ],
)
def test_the_kind_of_model_is_looked_at_before_anything_else(config: dict[str, Any], message: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as refused:
        read_config(tmp_path)
    assert message in str(refused.value)
    if "(supported: " in message:
        assert all(name in str(refused.value) for name in {*SUPPORTED, *LANGUAGE_PARTS})
    assert "\n" not in str(refused.value)
