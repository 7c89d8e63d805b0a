"""Quantized weights decoded on loading or kept as they are: `python -m benchmarks.quantized_weights --json OUT`.

A random Llama of about 150 million parameters is written in each format and served by a process of its own in both
ways. `weights_mib` is the memory of its matrix products; `peak_mib` the most memory that the process had at any time,
imports and KV included. Speeds are in tokens a second. The logits of both ways are compared bit by bit.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.layers.linear import Linear, PackedLinear
from engine.quantization import fp8
from engine.quantization.encoding import quantized
from tests.engine.conftest import generate, make_bench

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, DIM, VOCABULARY = 1024, 2816, 12, 16, 8, 64, 4096
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
}
FORMATS = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "int4": {"quant_method": "compressed-tensors", "config_groups": {"all": {"weights": {"num_bits": 4}}}},
}
GROUP = 128


def write(folder: Path, fmt: str) -> None:
    """The model in this format; `mxfp4` is written plain and made on loading."""
    torch.manual_seed(0)
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN) * 0.05,
        "model.norm.weight": torch.ones(HIDDEN),
    }
    shapes = {"self_attn.q_proj": (HEADS * DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * DIM)}
    shapes |= {f"self_attn.{part}_proj": (KV_HEADS * DIM, HIDDEN) for part in "kv"}
    shapes |= {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
    for layer in range(LAYERS):
        base = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{base}{norm}.weight"] = torch.ones(HIDDEN)
        for name, (outputs, inputs) in shapes.items():
            weight = torch.randn(outputs, inputs) * inputs**-0.5
            if fmt == "fp8":
                values, _ = fp8.encode(weight)
                scales = torch.rand(-(-outputs // 128), -(-inputs // 128)) * 1e-4 + 1e-4
                tensors |= {f"{base}{name}.weight": values, f"{base}{name}.weight_scale_inv": scales}
            elif fmt == "int4":
                words = torch.randint(-(2**31), 2**31, (outputs, inputs // 8), dtype=torch.int64).int()
                tensors |= {
                    f"{base}{name}.weight_packed": words,
                    f"{base}{name}.weight_scale": torch.rand(outputs, inputs // GROUP).mul(0.01).half(),
                    f"{base}{name}.weight_shape": torch.tensor([outputs, inputs]),
                }
            else:
                tensors[f"{base}{name}.weight"] = quantized(weight, "mxfp4")
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": FORMATS.get(fmt, {})}))


def measure(folder: Path, fmt: str, weights: str, dtype: str) -> dict[str, object]:
    """In this process: memory, speeds, and a digest of the logits."""
    torch.set_num_threads(2)
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    bench = make_bench(
        folder,
        blocks=64,
        budget=512,
        running=16,
        many_threads=2,
        dtype=kind,
        weights=weights,
        quantize="mxfp4" if fmt == "mxfp4" else "none",
    )
    run = bench.one(generate("first", [(7 * i) % VOCABULARY for i in range(300)], 4))
    held = sum(one.nbytes for one in gc.get_objects() if type(one) in {Linear, PackedLinear})
    digest = hashlib.sha256(torch.stack(run.logits).numpy().tobytes()).hexdigest()
    speeds = {}
    for batch, output in ((1, 12), (8, 12)):
        for number in range(batch):
            bench.add(generate(f"{batch}-{number}", [number + 1, 5], output))
        bench.step()
        began = time.perf_counter()
        bench.finish()
        speeds[f"batch_{batch}"] = round(batch * (output - 1) / (time.perf_counter() - began), 1)
    began = time.perf_counter()
    bench.one(generate("prompt", [(11 * i) % VOCABULARY for i in range(1024)], 1, read=False))
    speeds["prefill"] = round(1024 / (time.perf_counter() - began), 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "weights_mib": round(held / 2**20),
        "peak_mib": round(peak),
        "tokens_per_s": speeds,
        "logits": digest,
    }


def main() -> int:
    """Measure every format in both ways and print; 1 where the logits differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--json", help="write the figures here too")
    parser.add_argument("--one", nargs=3, metavar=("FOLDER", "FORMAT", "WEIGHTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(Path(given.one[0]), given.one[1], given.one[2], given.dtype)))
        return 0
    figures: dict[str, dict[str, dict[str, object]]] = {}
    with tempfile.TemporaryDirectory(prefix="turnpike-weights-") as name:
        for fmt in (*FORMATS, "mxfp4"):
            folder = Path(name) / fmt
            write(folder, fmt)
            figures[fmt] = {}
            for weights in ("decoded", "packed"):
                command = [sys.executable, "-m", "benchmarks.quantized_weights", "--dtype", given.dtype]
                command += ["--one", str(folder), fmt, weights]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
                figures[fmt][weights] = json.loads(done.stdout.splitlines()[-1])
    same = {fmt: ways["decoded"].pop("logits") == ways["packed"].pop("logits") for fmt, ways in figures.items()}
    text = json.dumps({"dtype": given.dtype, "formats": figures, "same_logits": same}, indent=2)
    print(text)
    if given.json:
        Path(given.json).write_text(text + "\n")
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
