"""Duration of a start: `python -m benchmarks.startup_time --json OUT`.

`turnpike serve` is started three times, each until it answers a request, for three models: the demo model, a random
model of 0.5 billion parameters in bf16, and the same with its layers kept in 4 bits.

- `first`: an empty data folder. Secrets and database are made, and nothing is known of the machine.
- `again`: the same data folder after a stop by SIGTERM.
- `replica`: the replica process alone, after SIGKILL, beside a gateway that runs on.

Figures are seconds from `exec` (for `replica`, from the kill) to `/healthz`, to `/readyz`, and to the answer of one
token. `log` gives the seconds at which the replica logged each step of its start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import save_file

DEMO = Path(__file__).resolve().parent.parent / "models" / "stdlib-qa"
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, DIM, VOCABULARY, GROUP = 896, 4864, 24, 14, 2, 64, 151_936, 128
CONFIG = {
    "model_type": "qwen2",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
    "bos_token_id": 4091,
    "eos_token_id": 4095,
}
INT4 = {"quant_method": "compressed-tensors", "config_groups": {"all": {"weights": {"num_bits": 4}}}}
POLL_S = 0.02
PATIENCE_S = 240.0


def write_model(folder: Path, *, int4: bool) -> Path:
    """A random qwen2 of 0.5 billion parameters, its vocabulary as large as its embedding."""
    folder.mkdir()
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder / name)
    (folder / "turnpike.toml").write_text((DEMO / "turnpike.toml").read_text().replace("stdlib-qa", folder.name))
    _write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **({"quantization_config": INT4} if int4 else {})}))
    torch.manual_seed(0)
    dtype = torch.bfloat16
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, dtype=dtype) * 0.02,
        "model.norm.weight": torch.ones(HIDDEN, dtype=dtype),
    }
    outputs = {"self_attn.q_proj": HEADS * DIM, "self_attn.k_proj": KV_HEADS * DIM, "self_attn.v_proj": KV_HEADS * DIM}
    outputs |= {"self_attn.o_proj": HIDDEN, "mlp.gate_proj": INNER, "mlp.up_proj": INNER, "mlp.down_proj": HIDDEN}
    for layer in range(LAYERS):
        base = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{base}{norm}.weight"] = torch.ones(HIDDEN, dtype=dtype)
        for name, count in outputs.items():
            inputs = INNER if name == "mlp.down_proj" else HIDDEN
            if name[-6] in "qkv" and name.startswith("self_attn"):
                tensors[f"{base}{name}.bias"] = torch.zeros(count, dtype=dtype)
            if not int4:
                tensors[f"{base}{name}.weight"] = torch.randn(count, inputs, dtype=dtype) * inputs**-0.5
                continue
            words = torch.randint(-(2**31), 2**31, (count, inputs // 8), dtype=torch.int64).int()
            tensors[f"{base}{name}.weight_packed"] = words
            tensors[f"{base}{name}.weight_scale"] = torch.rand(count, inputs // GROUP).mul(0.01).to(dtype)
            tensors[f"{base}{name}.weight_shape"] = torch.tensor([count, inputs])
    save_file(tensors, folder / "model.safetensors")
    return folder


def _write_tokenizer(folder: Path) -> None:
    """The demo's tokenizer with more merges, until there are as many tokens as a tokenizer of that size has."""
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    words = [word for word in vocabulary if word.isalpha()]
    next_id = max(*vocabulary.values(), *(added["id"] for added in tokenizer["added_tokens"])) + 1
    for first in words:
        for second in words[::7]:
            if next_id == VOCABULARY:
                break
            if first + second not in vocabulary:
                vocabulary[first + second] = next_id
                merges.append([first, second] if isinstance(merges[0], list) else f"{first} {second}")
                next_id += 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


class Serve:
    """`turnpike serve` of one model in a data folder, with what the replica logs. `port`: None for a free one."""

    def __init__(self, model: Path, data: Path, arguments: Sequence[str], port: int | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = port or free.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        self.model = model.name
        self.log: list[tuple[float, str]] = []
        self.began = time.time()
        command = [sys.executable, "-m", "turnpike.cli", "serve", "--data-dir", str(data), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--model", str(model), *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                told = json.loads(line)
                at = datetime.fromisoformat(told["timestamp"]).timestamp()
            except (ValueError, KeyError):
                print(line, end="", file=sys.stderr)
                continue
            if told.get("logger", "").startswith("engine."):
                self.log.append((at, told["event"]))

    def status(self, path: str, key: str = "", body: dict[str, Any] | None = None) -> int:
        """The status of the answer, 0 for none."""
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.base + path, data, headers), timeout=60) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait(self, path: str, key: str = "", body: dict[str, Any] | None = None) -> float:
        """The Unix time at which the path first answered with 200."""
        end = time.monotonic() + PATIENCE_S
        while self.status(path, key, body) != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.model}: {path} did not answer")
            time.sleep(POLL_S)
        return time.time()

    def first_token(self, key: str) -> float:
        """The Unix time at which a request of one token was first answered."""
        messages = [{"role": "user", "content": "What does textwrap.dedent do?"}]
        return self.wait("/v1/chat/completions", key, {"model": self.model, "messages": messages, "max_tokens": 1})

    def logged(self, since: float) -> dict[str, float]:
        """What the replica logged since this Unix time, and after how many seconds."""
        return {event: round(at - since, 2) for at, event in self.log if at >= since}

    def kill_replica(self) -> None:
        """SIGKILL for the replica process."""
        for child in psutil.Process(self.process.pid).children():
            if "engine" in child.cmdline():
                child.kill()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._reader.join()


def measure(model: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The three starts of one model."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="turnpike-start-") as name:
        key = ""
        for kind in ("first", "again"):
            _forget_pages(model)
            serve = Serve(model, Path(name) / "data", arguments)
            try:
                found = {"healthz": serve.wait("/healthz"), "readyz": serve.wait("/readyz")}
                if key:
                    found["first_token"] = serve.first_token(key)
                figures[kind] = {at: round(took - serve.began, 2) for at, took in found.items()}
                figures[kind]["log"] = serve.logged(serve.began)
                if not key:
                    key = make_key(Path(name) / "data")
                    serve.first_token(key)
                else:
                    killed = time.time()
                    serve.kill_replica()
                    time.sleep(0.2)  # until the gateway has heard of it
                    figures["replica"] = {"first_token": round(serve.first_token(key) - killed, 2)}
                    figures["replica"]["log"] = serve.logged(killed)
            finally:
                serve.stop()
    return figures


def make_key(data: Path) -> str:
    command = [sys.executable, "-m", "turnpike.cli", "keys", "create", "--tenant", "demo", "--project", "default"]
    done = subprocess.run([*command, "--data-dir", str(data)], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.split()[-1]


def _forget_pages(model: Path) -> None:
    """Let the kernel read the model's files from the disk again."""
    for file in model.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["demo", "bf16", "int4"], nargs="+", default=["demo", "bf16", "int4"])
    parser.add_argument("--keep", type=Path, help="where the random models are made and kept")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory(prefix="turnpike-start-models-") as temporary:
        made = given.keep or Path(temporary)
        made.mkdir(exist_ok=True)
        for name in given.only:
            folder = DEMO if name == "demo" else made / f"random-{name}"
            if not folder.exists():
                write_model(folder, int4=name == "int4")
            result[name] = measure(folder, ["--weights", "packed"] if name == "int4" else [])
            if given.json:  # what was measured stays if the next model is too much
                given.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
