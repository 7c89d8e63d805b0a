"""A LoRA adapter as PEFT saves it: `adapter_model.safetensors` and `adapter_config.json`, checked before it is used.

Only safetensors are read: a header of JSON, then the tensors' bytes. Nothing in it is executed, and all that is looked
at is bounded by the file's own size. An adapter's identity is the digest of what decides its results: the tensors,
their factors, the tokens that invoke it, and the base model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_files.adapter_config import PARTS, AdapterConfig, AdapterRefused, read_adapter_config

MOST_BYTES = 1 << 30
"""Bytes of an adapter's tensors."""
_MOST_HEADER = 4 << 20
_MOST_TENSORS = 20_000
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_CHUNK = 1 << 22
_NAME = re.compile(
    r"base_model\.model\.((?:model\.)(?:layers\.(\d{1,4}))\.(self_attn|mlp)\.(\w+))\.lora_([AB])\.weight"
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]|PK\x03\x04")


@dataclass(frozen=True)
class AdapterTensor:
    """One matrix: its type as safetensors names it, its shape, its bytes."""

    dtype: str
    shape: tuple[int, int]
    data: memoryview


@dataclass(frozen=True)
class AdaptedModule:
    """The two matrices of a linear layer: A [rank, inputs], B [outputs, rank], and the factor of their product."""

    a: AdapterTensor
    b: AdapterTensor
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def inputs(self) -> int:
        return self.a.shape[1]

    @property
    def outputs(self) -> int:
        return self.b.shape[0]


@dataclass(frozen=True)
class AdapterFile:
    """A checked adapter. `modules`: by the base model's name of the layer, such as `model.layers.0.mlp.up_proj`."""

    config: AdapterConfig
    modules: Mapping[str, AdaptedModule]
    digest: str
    bytes: int

    @property
    def rank(self) -> int:
        """Its largest rank."""
        return max(module.rank for module in self.modules.values())

    @property
    def targets(self) -> tuple[str, ...]:
        """The kinds of layers that it changes, in the order of a layer's work."""
        kinds = {name.rpartition(".")[2] for name in self.modules}
        return tuple(part for part in PARTS if part in kinds)


def pack(config: bytes, tensors: bytes) -> bytes:
    """Both files as one content, as it is kept and sent."""
    return tensors + trailer(config)


def trailer(config: bytes) -> bytes:
    """What follows the tensors in such a content: the configuration and its length."""
    return config + len(config).to_bytes(4, "big")


def read_packed(content: bytes, base: str) -> AdapterFile:
    """The adapter in such a content. Raises AdapterRefused."""
    end = len(content) - 4
    tensors = end - int.from_bytes(content[end:], "big") if end >= 0 else -1
    if tensors < 0:
        raise AdapterRefused("adapter_config.json", "it is cut off")
    return read_adapter(content[tensors:end], memoryview(content)[:tensors], base)


def read_adapter(config: bytes, tensors: bytes | memoryview, base: str) -> AdapterFile:
    """The adapter in these two files. `base`: what tells its base model from others. Raises AdapterRefused, naming the
    field or tensor."""
    settings = read_adapter_config(config)
    content = memoryview(tensors)
    found: dict[str, dict[str, AdapterTensor]] = {}
    for name, tensor in _tensors(content):
        module, side = _place(name)
        found.setdefault(module, {})[side] = tensor
    if not found:
        raise AdapterRefused("adapter_model.safetensors", "it has no tensors")
    modules = {name: _module(name, found[name], settings) for name in sorted(found)}
    return AdapterFile(settings, modules, _digest(settings, modules, base), len(content))


# ---------------------------------------------------------------- safetensors


def _tensors(content: memoryview) -> Iterator[tuple[str, AdapterTensor]]:
    """Names and tensors, which lie one behind another and fill the file."""
    file = "adapter_model.safetensors"
    if _PICKLE.match(bytes(content[:4])):
        raise AdapterRefused(file, "it is a pickle or an archive; only safetensors are read")
    if len(content) > MOST_BYTES:
        raise AdapterRefused(file, f"{len(content)} bytes are more than {MOST_BYTES}")
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= size <= min(_MOST_HEADER, len(content) - 8):
        raise AdapterRefused(file, "its header is not that of safetensors")
    try:
        header = json.loads(bytes(content[8 : 8 + size]), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(file, "its header is not JSON with each name once") from error
    if not isinstance(header, dict) or len(header) > _MOST_TENSORS:
        raise AdapterRefused(file, f"its header is not an object of at most {_MOST_TENSORS} tensors")
    header.pop("__metadata__", None)
    data, end = content[8 + size :], 0
    entries = [(name, *_entry(name, entry)) for name, entry in header.items()]
    for name, dtype, shape, begin, until in sorted(entries, key=lambda entry: entry[3:]):
        if begin != end or until > len(data) or until - begin != shape[0] * shape[1] * _SIZES[dtype]:
            raise AdapterRefused(name[:200], "its bytes are not where and as many as its shape says")
        end = until
        yield name, AdapterTensor(dtype, shape, data[begin:until])
    if end != len(data):
        raise AdapterRefused(file, "it has bytes behind its tensors")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def _entry(name: str, entry: Any) -> tuple[str, tuple[int, int], int, int]:
    """Type, shape, and where its bytes begin and end."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(until)]}:
            pass
        case _:
            raise AdapterRefused(name[:200], "its entry in the header is not that of a tensor")
    if dtype not in _SIZES:
        raise AdapterRefused(name[:200], f"its type {dtype[:20]!r} is not one of {', '.join(_SIZES)}")
    if len(shape) != 2 or any(type(size) is not int or not 1 <= size < 1 << 24 for size in shape):
        raise AdapterRefused(name[:200], "its shape is not that of a matrix")
    return dtype, (shape[0], shape[1]), begin, until


# ---------------------------------------------------------------- modules


def _place(name: str) -> tuple[str, str]:
    """The module and the side, A or B, of a tensor's name."""
    match = _NAME.fullmatch(name)
    if match is not None and match[4] in PARTS:
        return match[1], match[5]
    if "experts" in name or ".router" in name or name.endswith(".gate.lora_A.weight"):
        problem = "experts and routers cannot be an adapter's"
    elif "lm_head" in name or "embed" in name:
        problem = "lm_head and embeddings cannot be an adapter's"
    elif "magnitude" in name:
        problem = "DoRA is not supported"
    else:
        problem = f"only lora_A and lora_B of {', '.join(PARTS)} are supported"
    raise AdapterRefused(name[:200], problem)


def _module(name: str, sides: Mapping[str, AdapterTensor], config: AdapterConfig) -> AdaptedModule:
    for side in "AB":
        if side not in sides:
            raise AdapterRefused(f"{name}.lora_{side}", "it is missing")
    a, b = sides["A"], sides["B"]
    rank = config.rank_of(name)
    if a.shape[0] != rank or b.shape[1] != rank:
        raise AdapterRefused(name, f"its matrices {list(a.shape)} and {list(b.shape)} have not the rank {rank}")
    for side, tensor in sides.items():
        if not _is_finite(tensor):
            raise AdapterRefused(f"{name}.lora_{side}", "it has NaN or infinity")
    return AdaptedModule(a, b, config.scale_of(name))


def _is_finite(tensor: AdapterTensor) -> bool:
    for begin in range(0, len(tensor.data), _CHUNK):
        part = tensor.data[begin : begin + _CHUNK]
        if tensor.dtype == "BF16":
            exponents = np.frombuffer(part, np.uint16) & 0x7F80
            finite = bool((exponents != 0x7F80).all())
        else:
            finite = bool(np.isfinite(np.frombuffer(part, np.float32 if tensor.dtype == "F32" else np.float16)).all())
        if not finite:
            return False
    return True


def _digest(config: AdapterConfig, modules: Mapping[str, AdaptedModule], base: str) -> str:
    """Hex SHA-256 over what decides the results. Each field has its length before it."""
    digest = hashlib.sha256(b"turnpike/adapter/v1")

    def enter(*fields: bytes | memoryview) -> None:
        for field in fields:
            digest.update(len(field).to_bytes(8, "big"))
            digest.update(field)

    enter(base.encode(), json.dumps(config.invocation).encode())
    for name, module in modules.items():
        enter(name.encode(), module.scale.hex().encode())
        for tensor in (module.a, module.b):
            enter(tensor.dtype.encode(), json.dumps(tensor.shape).encode(), tensor.data)
    return digest.hexdigest()
