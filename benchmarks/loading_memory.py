"""Memory that a model takes, and that loading it takes: `python -m benchmarks.loading_memory --json OUT`.

A random Qwen2 of the shape of Qwen2-0.5B (494 million parameters in bf16, the head tied to the embedding) is written to
a temporary folder, loaded in fp32 by a process of its own, and asked for one token. All figures are in MiB:

- `file`: the weights file. `weights`: the parameters in fp32, tied ones once.
- `before`: resident before anything is loaded. `resident`: after the answer. `peak`: the most at any time.
- `mapped`: the part of `resident` that is pages of files. `peak_ratio`: peak / resident.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.engine.conftest import generate, make_bench

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 896, 4864, 24, 14, 2, 151936
CONFIG = {
    "model_type": "qwen2",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
CONTEXT, BLOCKS = 2048, 32


def write(folder: Path, layers: int, hidden: int = HIDDEN) -> int:
    """The model in bf16; returns the number of its parameters. `hidden`: another size of hidden states."""
    torch.manual_seed(0)
    dim = HIDDEN // HEADS
    query_heads = hidden // dim

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape) * 0.02).bfloat16()

    tensors = {
        "model.embed_tokens.weight": random(VOCABULARY, hidden),
        "model.norm.weight": torch.ones(hidden).bfloat16(),
    }
    for layer in range(layers):
        name = f"model.layers.{layer}."
        tensors |= {
            f"{name}{norm}.weight": torch.ones(hidden).bfloat16()
            for norm in ("input_layernorm", "post_attention_layernorm")
        }
        for part, heads in (("q", query_heads), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{name}self_attn.{part}_proj.weight"] = random(heads * dim, hidden)
            tensors[f"{name}self_attn.{part}_proj.bias"] = random(heads * dim)
        tensors[f"{name}self_attn.o_proj.weight"] = random(hidden, query_heads * dim)
        tensors |= {f"{name}mlp.{part}_proj.weight": random(INNER, hidden) for part in ("gate", "up")}
        tensors[f"{name}mlp.down_proj.weight"] = random(hidden, INNER)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({**CONFIG, "hidden_size": hidden, "num_attention_heads": query_heads, "num_hidden_layers": layers})
    )
    return sum(tensor.numel() for tensor in tensors.values())


def status() -> dict[str, float]:
    """This process's memory in MiB, as the kernel counts it."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) / 1024 for line in lines if line[0].startswith(("Vm", "Rss"))}


def measure(folder: Path) -> dict[str, float]:
    """In this process: load and answer."""
    before = status()
    began = time.perf_counter()
    bench = make_bench(folder, blocks=BLOCKS, context=CONTEXT, budget=256, running=8)
    loaded, peak_loading = time.perf_counter() - began, status()
    bench.one(generate("first", [(7 * i) % VOCABULARY for i in range(64)], 2))
    after = status()
    return {
        "before": before["VmRSS"],
        "resident": after["VmRSS"],
        "mapped": after["RssFile"],
        "peak": max(after["VmHWM"], peak_loading["VmHWM"]),
        "load_s": loaded,
    }


def main() -> int:
    """Write, measure in another process, print; 1 where the peak is more than 1.3 times what stays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--json", help="write the figures here too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(Path(given.one))))
        return 0
    with tempfile.TemporaryDirectory(prefix="turnpike-loading-") as name:
        folder = Path(name)
        parameters = write(folder, given.layers)
        file = (folder / "model.safetensors").stat().st_size
        command = [sys.executable, "-m", "benchmarks.loading_memory", "--one", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        figures = json.loads(done.stdout.splitlines()[-1])
    figures = {"file": file / 2**20, "weights": parameters * 4 / 2**20, **figures}
    figures["peak_ratio"] = figures["peak"] / figures["resident"]
    text = json.dumps({key: round(value, 2) for key, value in figures.items()}, indent=2)
    print(text)
    if given.json:
        Path(given.json).write_text(text + "\n")
    return 0 if figures["peak_ratio"] <= 1.3 else 1


if __name__ == "__main__":
    sys.exit(main())
