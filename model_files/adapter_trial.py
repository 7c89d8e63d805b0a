"""Checks an adapter in a process of its own, with bounds of time and memory: `python -m model_files.adapter_trial`.

Its content comes by standard input; the verdict goes to standard output, as JSON. Arguments: the base's text digest,
and the path of its model. Whatever a hostile file does to this process, the one that started it only sees it end.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_files.adapter_config import AdapterRefused
from model_files.adapter_file import MOST_BYTES, AdapterFile, read_packed
from model_files.model_documents import read_document

CPU_S = 120
_MEMORY = 3 * MOST_BYTES
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def verdict_on(content: bytes, base: str, model: Path) -> dict[str, Any]:
    """What there is to say of an adapter's content, or which field of it is refused and why."""
    try:
        file = read_packed(content, base)
        check_shapes(file, configuration(model))
    except AdapterRefused as error:
        return {"field": error.field, "problem": error.problem}
    layers = {name.split(".layers.")[1].split(".")[0] for name in file.modules}
    return {
        "digest": file.digest,
        "rank": file.rank,
        "alpha": file.config.alpha,
        "targets": file.targets,
        "layers": len(layers),
        "invocation": file.config.invocation,
    }


def check_shapes(file: AdapterFile, config: Mapping[str, Any]) -> None:
    """Raise AdapterRefused, naming the module, for one that has no layer of its shape by the base's configuration. A
    replica, which has the layers themselves, checks again."""
    hidden, layers, heads = (config.get(name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    if not (isinstance(hidden, int) and isinstance(layers, int) and isinstance(heads, int) and heads > 0):
        return
    dim = config.get("head_dim") or hidden // heads
    query, keys = heads * dim, (config.get("num_key_value_heads") or heads) * dim
    inner = config.get("intermediate_size")
    shapes = {
        "q_proj": (query, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "qkv_proj": (query + 2 * keys, hidden),
        "o_proj": (hidden, query),
    }
    if isinstance(inner, int):
        shapes |= {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        shapes["gate_up_proj"] = 2 * inner, hidden
    for name, module in file.modules.items():
        layer, part = int(name.split(".layers.")[1].split(".")[0]), name.rpartition(".")[2]
        if layer >= layers:
            raise AdapterRefused(name, f"the base model has {layers} layers")
        if ".self_attn." in name and config.get("kv_lora_rank"):
            raise AdapterRefused(name, "latent attention cannot be adapted")
        if ".mlp." in name and any(config.get(experts) for experts in _EXPERTS):
            raise AdapterRefused(name, "layers of a model with experts cannot be adapted")
        outputs, inputs = shapes.get(part, (module.outputs, module.inputs))
        if (outputs, inputs) != (module.outputs, module.inputs):
            problem = (
                f"it has {module.inputs} inputs and {module.outputs} outputs, the base model {inputs} and {outputs}"
            )
            raise AdapterRefused(name, problem)


def configuration(model: Path) -> Mapping[str, Any]:
    """What the configuration of a model says, or that of its language part. Raises OSError, ValueError."""
    content = json.loads(read_document(model / "config.json"))
    nested = content.get("text_config")
    return content | nested if isinstance(nested, dict) else content  # type: ignore[no-any-return]


def main() -> int:
    """The process: reads its input to the end, prints the verdict."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    content = sys.stdin.buffer.read(MOST_BYTES + (1 << 20))
    json.dump(verdict_on(content, sys.argv[1], Path(sys.argv[2])), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
