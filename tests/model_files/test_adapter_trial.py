"""An adapter is checked by a process of its own: against its base's configuration, within bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from model_files.adapter_file import pack
from model_files.adapter_trial import verdict_on
from tests import adapter_files

ROOT = Path(__file__).parents[2]
BASE = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    return tmp_path


def packed(**options: Any) -> bytes:
    return pack(adapter_files.config(), adapter_files.safetensors(adapter_files.matrices(**options)))


def test_what_fits_is_described(base: Path) -> None:
    said = verdict_on(packed(), "text", base)
    assert (said["rank"], said["alpha"], said["layers"], len(said["targets"]), said["invocation"]) == (8, 16, 2, 7, ())
    assert len(said["digest"]) == 64


@pytest.mark.parametrize(
    ("changes", "options", "told"),
    [
        ({}, {"layers": 3}, "2 layers"),
        ({"hidden_size": 64}, {}, "48 outputs"),
        ({"num_key_value_heads": 6}, {"targets": ["self_attn.k_proj"]}, "16 outputs"),
        ({"intermediate_size": 80}, {"targets": ["mlp.up_proj"]}, "72 outputs"),
        ({"num_local_experts": 8}, {"targets": ["mlp.up_proj"]}, "experts"),
        ({"kv_lora_rank": 8}, {"targets": ["self_attn.q_proj"]}, "latent"),
    ],
)
def test_what_does_not_fit_the_base_is_refused_by_name(
    base: Path, changes: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    (base / "config.json").write_text(json.dumps(BASE | changes))
    said = verdict_on(packed(**options), "text", base)
    assert told in said["problem"]
    assert said["field"].startswith("model.layers.")


@pytest.mark.parametrize("content", [packed(), b"PK\x03\x04" * 1000, b"", b"\xff" * 100_000])
def test_the_process_answers_in_json(base: Path, content: bytes) -> None:
    command = [sys.executable, "-m", "model_files.adapter_trial", "text", str(base)]
    done = subprocess.run(command, input=content, capture_output=True, cwd=ROOT, timeout=60, check=True)
    assert ("digest" in json.loads(done.stdout)) == (content == packed())
