"""`adapter_config.json` of PEFT's LoRA (Hu et al. 2021), read strictly: what would change the answer and is not
computed here is refused by its name.

A field that is not known is passed over where it is null, false or empty, as PEFT writes what is not used.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

MOST_CONFIG_BYTES = 64 * 1024
MOST_RANK = 256
MOST_INVOCATION_TOKENS = 64
_MOST_PATTERNS = 4096
_MOST_TOKEN = 1 << 32

PARTS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj")
"""The linear layers that adapters may change, by the last part of their names."""
_TRAINING = {
    *("base_model_name_or_path", "revision", "task_type", "inference_mode", "lora_dropout", "auto_mapping"),
    *("loftq_config", "eva_config", "peft_version", "exclude_modules", "layers_to_transform", "layers_pattern"),
    *(
        "megatron_core",
        "qalora_group_size",
        "runtime_config",
        "ensure_weight_tying",
        "target_modules",
        "lora_ga_config",
    ),
}
"""Fields that say how it was made, or where its tensors are: the tensors themselves say that too."""
_REFUSED = {
    "use_dora": "DoRA scales weights, not only adds to them",
    "modules_to_save": "whole modules, such as lm_head and embeddings, cannot be an adapter's",
    "trainable_token_indices": "embeddings cannot be an adapter's",
    "target_parameters": "weights of experts cannot be an adapter's",
    "layer_replication": "the base model's layers cannot be repeated",
    "fan_in_fan_out": "weights are [outputs, inputs]",
    "lora_bias": "biases cannot be an adapter's",
}
_SAME_BASE = (True, False, "gaussian", "eva", "orthogonal", "loftq")
"""How matrices were begun, where the base model was not changed for that."""
_PLAIN_NAME = re.compile(r"\^?[A-Za-z0-9_.]{1,200}")


class AdapterRefused(Exception):
    """A file is no adapter that can be served. `field` names the part of it: a field or a tensor."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True)
class AdapterConfig:
    """What a configuration says of the result."""

    rank: int
    alpha: float
    rslora: bool
    rank_pattern: tuple[tuple[str, float], ...]
    alpha_pattern: tuple[tuple[str, float], ...]
    invocation: tuple[int, ...]
    """The tokens from whose last occurrence on the weights act; empty if they act everywhere."""

    def rank_of(self, module: str) -> int:
        """The rank of a module's matrices."""
        return int(_of_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor of a module's product: alpha / rank, with rslora (Kalajdzievski 2023) alpha / √rank."""
        rank = self.rank_of(module)
        return _of_pattern(self.alpha_pattern, module, self.alpha) / (math.sqrt(rank) if self.rslora else rank)


def read_adapter_config(content: bytes) -> AdapterConfig:
    """Raises AdapterRefused, naming the field."""
    if len(content) > MOST_CONFIG_BYTES:
        raise AdapterRefused("adapter_config.json", f"{len(content)} bytes are more than {MOST_CONFIG_BYTES}")
    try:
        fields = json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise AdapterRefused("adapter_config.json", "it is not JSON") from error
    if not isinstance(fields, dict):
        raise AdapterRefused("adapter_config.json", "it is not a JSON object")
    if fields.pop("peft_type", None) != "LORA":
        raise AdapterRefused("peft_type", "only LORA is supported")
    rank = _whole(fields.pop("r", None), "r", MOST_RANK)
    alpha = _number(fields.pop("lora_alpha", None), "lora_alpha")
    rslora = fields.pop("use_rslora", False)
    if not isinstance(rslora, bool):
        raise AdapterRefused("use_rslora", "it is not true or false")
    if fields.pop("bias", "none") != "none":
        raise AdapterRefused("bias", "biases cannot be an adapter's")
    begun = fields.pop("init_lora_weights", True)
    if not isinstance(begun, bool | str) or begun not in _SAME_BASE:
        raise AdapterRefused(
            "init_lora_weights", f"{str(begun)[:40]!r} changes the base model; convert it to plain LoRA"
        )
    ranks = _pattern(fields.pop("rank_pattern", None), "rank_pattern")
    if any(not value.is_integer() or not 1 <= value <= MOST_RANK for _, value in ranks):
        raise AdapterRefused("rank_pattern", f"a rank is not within 1..{MOST_RANK}")
    alphas = _pattern(fields.pop("alpha_pattern", None), "alpha_pattern")
    invocation = _invocation(fields.pop("alora_invocation_tokens", None))
    for name, value in fields.items():
        if name not in _TRAINING and value not in (None, False, [], {}, ""):
            raise AdapterRefused(name[:80], _REFUSED.get(name, "it is not supported"))
    return AdapterConfig(rank, alpha, rslora, ranks, alphas, invocation)


def _no_number(text: str) -> None:
    raise ValueError(text)


def _whole(value: Any, field: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise AdapterRefused(field, f"it is not a whole number within 1..{most}")
    return value


def _number(value: Any, field: str) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e6:
        raise AdapterRefused(field, "it is not a number above 0 and below 1000000")
    return float(value)


def _pattern(value: Any, field: str) -> tuple[tuple[str, float], ...]:
    """Module names and their values. PEFT takes regular expressions; only names are taken here, which take no time."""
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > _MOST_PATTERNS:
        raise AdapterRefused(field, f"it is not an object of at most {_MOST_PATTERNS} names")
    for name in value:
        if not _PLAIN_NAME.fullmatch(name):
            raise AdapterRefused(field, f"{name[:80]!r} is not a module's name; regular expressions are not supported")
    return tuple((name, _number(number, field)) for name, number in value.items())


def _of_pattern(pattern: tuple[tuple[str, float], ...], module: str, default: float) -> float:
    """The value of the first name that the module's name is, or ends with, part by part."""
    for name, value in pattern:
        if module == name.lstrip("^") or (not name.startswith("^") and module.endswith(f".{name}")):
            return value
    return default


def _invocation(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_INVOCATION_TOKENS:
        raise AdapterRefused("alora_invocation_tokens", f"it is not a list of 1 to {MOST_INVOCATION_TOKENS} token ids")
    if any(type(token) is not int or not 0 <= token < _MOST_TOKEN for token in value):
        raise AdapterRefused("alora_invocation_tokens", "it has what is no token id")
    return tuple(value)
