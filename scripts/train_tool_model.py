"""Trains the demo model that calls tools on conversations that it makes up, and writes its folder.

    python scripts/train_tool_model.py                             # one GPU, under nine minutes
    python scripts/train_tool_model.py --smoke --out /tmp/models   # seconds on a CPU: tiny, and no good

Needs torch, numpy, tokenizers, jinja2 and safetensors. The folder's `held_out.json`, which was written before this
program, and `held_out_2.json`, whose writer had not seen it, are only measured with.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from demo_model import export
from demo_model.network import Shape
from demo_model.train import train
from tokenizers import Tokenizer
from tool_model import evaluate, template
from tool_model.card import model_card
from tool_model.tools import concepts
from tool_model.windows import start_rows, texts


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    shape: Shape
    conversations: int
    for_vocabulary: int
    batch_tokens: int
    most_steps: int | None = None


FULL = Plan(
    shape=Shape(vocabulary=4096, width=256, layers=8, heads=4, kv_heads=2, inner=768),
    conversations=1_300_000,
    for_vocabulary=25_000,
    batch_tokens=65_536,
)
SMOKE = Plan(
    shape=Shape(vocabulary=1024, width=64, layers=1, heads=2, kv_heads=1, inner=128, head_dim=32, context=2048),
    conversations=160,
    for_vocabulary=100,
    batch_tokens=1_280,
    most_steps=20,
)


def main() -> None:
    options = parse_arguments()
    started = time.perf_counter()
    plan, device = (SMOKE, "cpu") if options.smoke else (FULL, "cuda" if torch.cuda.is_available() else "cpu")
    if options.conversations:
        plan = dataclasses.replace(plan, conversations=options.conversations)
    processes = max(1, (os.cpu_count() or 2) - 1)
    torch.set_float32_matmul_precision("highest")
    begun = None
    if options.go_on:
        begun, tokenizer = export.read_folder(options.go_on)
    else:
        tokenizer = vocabulary(plan, options, started)
    say(started, f"{tokenizer.get_vocab_size()} tokens; making conversations in {processes} processes")
    rows = start_rows(
        tokenizer, plan.conversations, plan.batch_tokens, options.seed, options.hold_back, device, processes
    )
    say(started, "training")
    network, making = train(
        "model",
        plan.shape,
        rows,
        options.minutes * 60,
        options.seed,
        device,
        plan.most_steps,
        start_from=begun,
        height=options.height,
    )
    for length, (ids, _) in rows.by_length.items():
        say(started, f"{len(ids)} rows of {length}{'' if rows.complete.is_set() else ' so far'}")
    folder = options.out / "tool-caller"
    write_folder(folder, network, tokenizer)
    trained = time.perf_counter() - started
    say(started, "measuring")
    del network, rows
    results = measure(folder, options, device)
    figures = {
        **dataclasses.asdict(plan.shape),
        "results": results,
        "kinds": len(concepts()),
        "making": {
            "training time": f"{making['seconds']:.0f} s, after {making['compiling_seconds']:.0f} s of compilation",
            "steps": f"{making['steps']:,}",
            "tokens": f"{making['tokens'] / 1e6:.0f} million",
            "conversations": f"{plan.conversations:,}",
            "from start to trained": f"{trained / 60:.1f} minutes",
        },
        "device": f"one GPU ({torch.cuda.get_device_name()})" if device == "cuda" else "a CPU",
        "python": platform.python_version(),
        "seed": options.seed,
    }
    (folder / "README.md").write_text(model_card(figures))
    say(started, f"wrote {folder}, {export.folder_size(folder):,} bytes")


def vocabulary(plan: Plan, options: argparse.Namespace, started: float) -> Tokenizer:
    """Learnt from conversations, or read if it was written by an earlier run."""
    if options.vocabulary and options.vocabulary.exists():
        return Tokenizer.from_file(str(options.vocabulary))
    say(started, "learning the vocabulary")
    sample = texts(plan.for_vocabulary, f"vocabulary-{options.seed}", options.hold_back)
    tokenizer = template.train_tokenizer((rendered for _, rendered in sample), plan.shape.vocabulary)
    if options.vocabulary:
        tokenizer.save(str(options.vocabulary))
    return tokenizer


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("models"), help="folder that gets tool-caller/ (default: models)"
    )
    parser.add_argument(
        "--held-out",
        type=Path,
        nargs="+",
        default=[Path("models/tool-caller/held_out.json"), Path("models/tool-caller/held_out_2.json")],
        help="the questions that are measured with (default: both sets in models/tool-caller)",
    )
    parser.add_argument("--minutes", type=float, default=6.3, help="training time (default: 6.3)")
    parser.add_argument("--conversations", type=int, help="how many are made up")
    parser.add_argument(
        "--hold-back",
        type=int,
        default=0,
        metavar="N",
        help="leave every Nth kind of tool out of training and measure with it, too",
    )
    parser.add_argument("--go-on", type=Path, metavar="FOLDER", help="train these weights further, instead of new ones")
    parser.add_argument(
        "--vocabulary", type=Path, metavar="FILE", help="read the vocabulary there, or write it there once it is learnt"
    )
    parser.add_argument("--height", type=float, default=1.0, help="a factor of the rates (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="of everything drawn at random (default: 1)")
    parser.add_argument(
        "--smoke", action="store_true", help="a tiny model on the CPU in seconds, to see that everything runs"
    )
    return parser.parse_args()


def say(started: float, text: str) -> None:
    print(f"[{time.perf_counter() - started:5.0f} s] {text}", flush=True)


def write_folder(folder: Path, network: Any, tokenizer: Tokenizer) -> None:
    """What the first demo model's folder has, with this model's tokens and template."""
    export.write_folder(folder, network, tokenizer)
    begin, end = (tokenizer.token_to_id(token) for token in (template.BEGIN, template.END))
    (folder / "chat_template.jinja").write_text(template.CHAT_TEMPLATE)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    export.write_json(
        folder / "tokenizer_config.json",
        settings | {"bos_token": template.BEGIN, "chat_template": template.CHAT_TEMPLATE},
    )
    for name in ("config.json", "generation_config.json"):
        read = json.loads((folder / name).read_text())
        export.write_json(folder / name, read | {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": end})
    (folder / "turnpike.toml").write_text(export.PRICES.format(name=folder.name))


def measure(folder: Path, options: argparse.Namespace, device: str) -> dict[str, str]:
    """The rows of the card's table of figures, of the weights as they ship."""
    network, tokenizer = export.read_folder(folder, device)
    sets = {}
    for file in options.held_out:
        calls, silent = evaluate.held_out(file)
        sets |= {f"right calls, `{file.name}`": calls, f"no call where none is right, `{file.name}`": silent}
    if options.hold_back:
        unseen_calls, unseen_silent = evaluate.of_unseen_concepts(400, options.hold_back, options.seed)
        sets |= {"right calls, tools left out": unseen_calls, "no call, tools left out": unseen_silent}
    results = {}
    for label, cases in sets.items():
        right, wrong = evaluate.score(network, tokenizer, cases)
        results[label] = f"{right} of {len(cases)}"
        print(f"  {label}: {results[label]}")
        if "left out" in label:  # what is held out is not looked at
            for case, answer in wrong[:25]:
                named = [tool["function"]["name"] for tool in case.tools]
                print(f"    {case.question!r} {named} wanted {case.name} {case.arguments} got {answer[:160]!r}")
    return results


if __name__ == "__main__":
    main()
