"""What is no adapter that can be served is refused by name, in bounded time; identity is that of the contents."""

from __future__ import annotations

import json
import pickle
import random
import struct
import time
import zipfile
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from model_files.adapter_config import AdapterRefused, read_adapter_config
from model_files.adapter_file import pack, read_adapter, read_packed
from tests.adapter_files import config, matrices, safetensors

Q = "base_model.model.model.layers.0.self_attn.q_proj"


def test_an_adapter_is_read() -> None:
    found = read_adapter(config(rank=8, alpha=16), safetensors(matrices(8)), "base")
    assert len(found.modules) == 14
    module = found.modules["model.layers.1.mlp.down_proj"]
    assert (module.rank, module.inputs, module.outputs, module.scale) == (8, 72, 48, 2.0)
    assert found.targets == ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert read_packed(pack(config(rank=8, alpha=16), safetensors(matrices(8))), "base").digest == found.digest


def test_factors_follow_alpha_rslora_and_patterns() -> None:
    scale = lambda **fields: read_adapter_config(config(rank=16, **fields)).scale_of("model.layers.3.mlp.up_proj")  # noqa: E731
    assert scale(alpha=32) == 2.0
    assert scale(alpha=32, use_rslora=True) == 8.0
    assert scale(alpha=32, alpha_pattern={"up_proj": 8}) == 0.5
    assert scale(alpha=32, alpha_pattern={"layers.3.mlp.up_proj": 16, "up_proj": 8}) == 1.0
    assert scale(alpha=32, alpha_pattern={"p_proj": 8}) == 2.0
    assert scale(alpha=32, rank_pattern={"up_proj": 4}) == 8.0


def test_identity_is_that_of_the_contents() -> None:
    tensors = matrices(8)
    same = read_adapter(config(), safetensors(tensors), "base").digest
    backwards = dict(reversed(tensors.items()))
    assert read_adapter(config(lora_dropout=0.5, inference_mode=True), safetensors(backwards), "base").digest == same
    changed = {name: tensor.copy() for name, tensor in tensors.items()}
    changed[f"{Q}.lora_A.weight"][0, 0] += 1e-6
    others = {
        read_adapter(config(alpha=17), safetensors(tensors), "base").digest,
        read_adapter(config(use_rslora=True), safetensors(tensors), "base").digest,
        read_adapter(config(), safetensors(tensors), "another base").digest,
        read_adapter(config(), safetensors(changed), "base").digest,
        read_adapter(config(alora_invocation_tokens=[3]), safetensors(tensors), "base").digest,
        read_adapter(config(targets=("mlp.up_proj",)), safetensors(matrices(8, ("mlp.up_proj",))), "base").digest,
    }
    assert len(others | {same}) == 7


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"r": 0}, "r"),
        ({"r": 1 << 30}, "r"),
        ({"r": True}, "r"),
        ({"lora_alpha": float("inf")}, "adapter_config.json"),
        ({"lora_alpha": -1}, "lora_alpha"),
        ({"use_rslora": 1}, "use_rslora"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"rank_pattern": {"(a+)+$": 4}}, "rank_pattern"),
        ({"rank_pattern": {"up_proj": 0.5}}, "rank_pattern"),
        ({"alpha_pattern": []}, "alpha_pattern"),
        ({"alora_invocation_tokens": []}, "alora_invocation_tokens"),
        ({"alora_invocation_tokens": [1] * 65}, "alora_invocation_tokens"),
        ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens"),
        ({"something_new": {"scale": 2}}, "something_new"),
    ],
)
def test_configurations_that_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(AdapterRefused) as refused:
        read_adapter_config(json.dumps({**json.loads(config()), **fields}).encode())
    assert refused.value.field == field


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 30_000, b"{}" + b" " * 70_000, b"\xff\xfe"])
def test_what_is_no_configuration(content: bytes) -> None:
    with pytest.raises(AdapterRefused):
        read_adapter_config(content)


def bombs() -> list[bytes]:
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("data.pkl", b"\0" * (1 << 24))
    huge = json.dumps({f"{Q}.lora_A.weight": {"dtype": "F32", "shape": [8, 48], "data_offsets": [0, 1 << 60]}}).encode()
    return [
        *(pickle.dumps({"a": 1}), archive.getvalue(), b"", b"\0" * 7, struct.pack("<Q", 1 << 60) + b"{}"),
        struct.pack("<Q", len(huge)) + huge,
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"{}" + b"\0" * 4096,
        struct.pack("<Q", 10_000) + b"[" * 10_000,
    ]


@pytest.mark.parametrize("number", range(len(bombs())))
def test_what_is_no_safetensors(number: int) -> None:
    with pytest.raises(AdapterRefused):
        read_adapter(config(), bombs()[number], "base")


def with_tensor(name: str, tensor: np.ndarray[Any, Any]) -> bytes:
    return safetensors({**matrices(8), name: tensor})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (with_tensor("base_model.model.lm_head.lora_A.weight", np.ones((8, 48), np.float32)), "lm_head"),
        (with_tensor("base_model.model.model.embed_tokens.lora_embedding_A", np.ones((8, 48), np.float32)), "embed"),
        (
            with_tensor(
                "base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_A.weight", np.ones((8, 48), np.float32)
            ),
            "experts",
        ),
        (with_tensor(f"{Q}.lora_magnitude_vector", np.ones((8, 48), np.float32)), "DoRA"),
        (with_tensor("model.layers.0.self_attn.q_proj.weight", np.ones((48, 48), np.float32)), "only lora_A"),
        (with_tensor(f"{Q}.lora_A.weight", np.ones((9, 48), np.float32)), "rank"),
        (with_tensor(f"{Q}.lora_A.weight", np.full((8, 48), np.nan, np.float32)), "NaN"),
        (with_tensor(f"{Q}.lora_A.weight", np.full((8, 48), np.inf, np.float16)), "NaN"),
        (with_tensor(f"{Q}.lora_A.weight", np.full((8, 48), 0x7F80, np.uint16)), "NaN"),
        (with_tensor(f"{Q}.lora_A.weight", np.ones((8, 48), np.int64)), "type"),
        (with_tensor(f"{Q}.lora_A.weight", np.ones((8, 6, 8), np.float32)), "matrix"),
        (safetensors({f"{Q}.lora_A.weight": np.ones((8, 48), np.float32)}), "missing"),
        (
            safetensors(
                matrices(8), **{f"{Q}.lora_A.weight": {"dtype": "F32", "shape": [8, 48], "data_offsets": [4, 1540]}}
            ),
            "bytes",
        ),
        (safetensors(matrices(8)) + b"\0", "behind"),
    ],
)
def test_tensors_that_are_refused_by_name(content: bytes, told: str) -> None:
    with pytest.raises(AdapterRefused, match=told):
        read_adapter(config(), content, "base")


def test_two_thousand_damaged_files_are_refused_or_read_in_bounded_time() -> None:
    chance = random.Random(5)
    content = pack(config(), safetensors(matrices(8)))
    head = 8 + int.from_bytes(content[:8], "little")
    began, refused = time.perf_counter(), 0
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 8)):
            damaged[chance.randrange(head) if chance.random() < 0.8 else -chance.randrange(1, 400)] = chance.randrange(
                256
            )
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        try:
            read_packed(bytes(damaged), "base")
        except AdapterRefused as error:
            refused += bool(error.field)
    assert refused > 1500
    assert time.perf_counter() - began < 60
