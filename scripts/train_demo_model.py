"""Trains the demo model and its draft from the standard library of the Python that runs this, and writes their folders.

    python scripts/train_demo_model.py                 # one GPU, under eight minutes
    python scripts/train_demo_model.py --smoke --out /tmp/models   # seconds on a CPU: tiny, and no good

Needs torch, numpy, tokenizers and safetensors. With transformers installed, it compares its forward pass with that.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from demo_model import card, conversations, corpus, evaluate, export
from demo_model.cross_check import compare_with_transformers
from demo_model.network import Llama, Shape
from demo_model.tokenizer import train_tokenizer
from demo_model.train import Batches, on_device, train
from tokenizers import Tokenizer


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    model: Shape
    draft: Shape
    variants: int  # questions for each item
    long_prompts: int
    short_windows: int
    long_windows: int
    short_length: int
    long_length: int
    batch_tokens: int
    long_share: float
    questions: int  # of each sort, to ship
    more_questions: int  # in unseen phrasings, for a finer figure
    system_lengths: tuple[int, ...]
    only_modules: frozenset[str] | None = None
    most_steps: int | None = None


FULL = Plan(
    model=Shape(vocabulary=4096, width=256, layers=8, heads=4, kv_heads=2, inner=768),
    draft=Shape(vocabulary=4096, width=128, layers=2, heads=2, kv_heads=1, inner=256),
    variants=96,
    long_prompts=5_000,
    short_windows=48_000,
    long_windows=5_000,
    short_length=1_024,
    long_length=8_192,
    batch_tokens=65_536,
    long_share=0.3,
    questions=50,
    more_questions=500,
    system_lengths=(1_000, 4_000, 7_000),
)
SMOKE = Plan(
    model=Shape(vocabulary=512, width=64, layers=1, heads=2, kv_heads=1, inner=128, head_dim=32, context=1024),
    draft=Shape(vocabulary=512, width=64, layers=1, heads=2, kv_heads=1, inner=64, head_dim=32, context=1024),
    variants=4,
    long_prompts=4,
    short_windows=16,
    long_windows=4,
    short_length=128,
    long_length=512,
    batch_tokens=512,
    long_share=0.3,
    questions=2,
    more_questions=2,
    system_lengths=(60,),
    only_modules=frozenset({"textwrap", "json"}),
    most_steps=12,
)


def main() -> None:
    options = parse_arguments()
    started = time.perf_counter()
    plan, device = (SMOKE, "cpu") if options.smoke else (FULL, "cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("highest")
    say(started, f"reading the standard library of Python {platform.python_version()}")
    library = corpus.read_corpus(options.seed, plan.only_modules)
    tokenizer, batches = prepare(library, plan, options.seed, device, started)
    questions = evaluate.choose_questions(library, plan.questions, options.seed)
    context: dict[str, Any] = {
        "library": library,
        "plan": plan,
        "questions": questions,
        "options": options,
        "device": device,
        "batches": batches,
    }

    say(started, "training the model")
    model, making = train("model", plan.model, batches, options.minutes * 60, options.seed, device, plan.most_steps)
    folder = options.out / "stdlib-qa"
    export.write_folder(folder, model, tokenizer)
    say(started, "training the draft")
    draft, draft_making = train(
        "draft", plan.draft, batches, options.minutes * 60 / 5, options.seed, device, plan.most_steps
    )
    draft_folder = options.out / "stdlib-qa-draft"
    export.write_folder(draft_folder, draft, tokenizer)

    trained = time.perf_counter() - started
    say(started, "measuring")
    del model, draft
    finish_model(folder, making, trained, context)
    finish_draft(draft_folder, folder, draft_making, context)
    say(started, f"wrote {folder} and {draft_folder}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("models"),
        help="folder that gets stdlib-qa/ and stdlib-qa-draft/ (default: models)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=3.0,
        help="training time of the model; its draft takes a fifth more (default: 3)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything drawn at random (default: 1)")
    parser.add_argument(
        "--smoke", action="store_true", help="a tiny model on the CPU in seconds, to see that everything runs"
    )
    return parser.parse_args()


def say(started: float, text: str) -> None:
    print(f"[{time.perf_counter() - started:5.0f} s] {text}", flush=True)


def prepare(library: corpus.Corpus, plan: Plan, seed: int, device: str, started: float) -> tuple[Tokenizer, Batches]:
    """The vocabulary, and the training windows on the device."""
    say(
        started, f"{len(library.items)} items, {sum(map(len, library.texts)) / 1e6:.1f} MB of source; writing questions"
    )
    material = conversations.gather(library, plan.variants, plan.long_prompts, seed)
    say(started, f"{len(material.bank.texts)} texts; learning the vocabulary")
    tokenizer = train_tokenizer(conversations.corpus_strings(library, material, seed), plan.model.vocabulary)
    say(started, f"{tokenizer.get_vocab_size()} tokens; tokenizing")
    material.bank.encode(tokenizer)
    say(started, "assembling windows")
    assembler = conversations.Assembler(material, tokenizer, seed)
    short = assembler.windows(plan.short_windows, plan.short_length, long=False)
    long = assembler.windows(plan.long_windows, plan.long_length, long=True)
    return tokenizer, Batches(on_device(short, device), on_device(long, device), plan.batch_tokens, plan.long_share)


def finish_model(folder: Path, making: dict[str, float], trained: float, context: dict[str, Any]) -> None:
    """Measures the model as it ships and writes its questions, its prices and its card."""
    library, plan, questions = context["library"], context["plan"], context["questions"]
    export.write_json(folder / "questions.json", [dataclasses.asdict(question) for question in questions])
    (folder / "turnpike.toml").write_text(export.PRICES.format(name=folder.name))
    model, tokenizer = export.read_folder(folder, context["device"])
    results = measure(model, tokenizer, library, plan, questions, context["options"].seed)
    long_prompt = evaluate.system_prompt_of(library, tokenizer, plan.system_lengths[-1], 7)
    check = compare_with_transformers(folder, questions, long_prompt, context["device"])
    if check is not None:
        results["largest difference of a logit from transformers, float32"] = f"{check['largest_logit_difference']:.1e}"
        results["greedy answers equal to transformers"] = f"{check['same_answers']} of {check['of']}"
        results["rendered prompts equal to transformers"] = f"{check['same_prompts']} of {check['of']}"
    batches = context["batches"]
    figures = {
        **shape_figures(model),
        "results": results,
        "making": {
            **making_figures(making),
            "items asked about": f"{len(library.items):,}",
            "phrasings of each, at least": plan.variants,
            "source text": f"{sum(map(len, library.texts)) / 1e6:.1f} MB",
            "distinct training tokens": f"{(batches.short[0].numel() + batches.long[0].numel()) / 1e6:.0f} million",
            "from start to both models trained": f"{trained / 60:.1f} minutes",
        },
        "device": f"one GPU ({torch.cuda.get_device_name()})" if context["device"] == "cuda" else "a CPU",
        "python": platform.python_version(),
        "seed": context["options"].seed,
        "short_window": plan.short_length,
        "long_window": plan.long_length,
        "held_out": [f"`{name}`" for name in library.held_out_names],
    }
    write_card(folder, card.model_card, figures)


def measure(
    model: Llama,
    tokenizer: Tokenizer,
    library: corpus.Corpus,
    plan: Plan,
    questions: list[evaluate.Question],
    seed: int,
) -> dict[str, str]:
    """The rows of the card's table of figures."""
    seen = [question for question in questions if question.phrasing == "seen"]
    unseen = [question for question in questions if question.phrasing == "unseen"]
    results: dict[str, str] = {}
    for label, some in (("in phrasings seen in training", seen), ("in phrasings never seen", unseen)):
        right, wrong = evaluate.score(model, tokenizer, some)
        results[f"right {label}"] = f"{right} of {len(some)}"
        for question, answer in wrong:
            print(f"  wrong: {question!r} → {answer[:100]!r}")
    more = evaluate.choose_questions(library, plan.more_questions, seed + 1)[-plan.more_questions :]
    results["right in phrasings never seen, other items"] = (
        f"{evaluate.score(model, tokenizer, more)[0]} of {len(more)}"
    )
    for length in plan.system_lengths:
        system = evaluate.system_prompt_of(library, tokenizer, length, seed)
        results[f"right (seen) behind a system prompt of {length:,} tokens"] = (
            f"{evaluate.score(model, tokenizer, seen, system)[0]} of {len(seen)}"
        )
        results[f"right (unseen) behind the same {length:,} tokens"] = (
            f"{evaluate.score(model, tokenizer, unseen, system)[0]} of {len(unseen)}"
        )
        before = evaluate.earlier_turns(library, tokenizer, length, seed)
        results[f"right (seen) after {length:,} tokens of earlier turns"] = (
            f"{evaluate.score_after_turns(model, tokenizer, seen, before)} of {len(seen)}"
        )
        found = evaluate.score_facts(model, tokenizer, library, length, plan.questions, seed)
        results[f"facts found again in a system prompt of {length:,} tokens"] = f"{found} of {plan.questions}"
    results["bits per byte of held-out source text"] = (
        f"{evaluate.bits_per_byte(model, tokenizer, library.held_out):.3f}"
    )
    for name, value in results.items():
        print(f"  {name}: {value}")
    return results


def finish_draft(folder: Path, model_folder: Path, making: dict[str, float], context: dict[str, Any]) -> None:
    """Measures the draft against the model and writes its card."""
    model, tokenizer = export.read_folder(model_folder, context["device"])
    draft, _ = export.read_folder(folder, context["device"])
    agreed = evaluate.agreement(draft, model, tokenizer, context["questions"])
    bits = evaluate.bits_per_byte(draft, tokenizer, context["library"].held_out)
    results = {
        "greedy tokens of the model that the draft would choose too, on the test questions": f"{agreed:.1%}",
        "bits per byte of held-out source text": f"{bits:.3f}",
    }
    print(f"  draft: {results}")
    write_card(folder, card.draft_card, {**shape_figures(draft), "results": results, "making": making_figures(making)})


def shape_figures(model: Llama) -> dict[str, Any]:
    return {**dataclasses.asdict(model.shape), "parameters": sum(weight.numel() for weight in model.parameters())}


def making_figures(making: dict[str, float]) -> dict[str, str]:
    return {
        "training time": f"{making['seconds']:.0f} s, after {making['compiling_seconds']:.0f} s of compilation",
        "steps": f"{making['steps']:,}",
        "tokens": f"{making['tokens'] / 1e6:.0f} million",
    }


def write_card(folder: Path, text: Any, figures: dict[str, Any]) -> None:
    """Writes the card, whose own size counts in the folder's."""
    card_file = folder / "README.md"
    card_file.write_text(text({**figures, "bytes": 0}))
    card_file.write_text(text({**figures, "bytes": export.folder_size(folder)}))


if __name__ == "__main__":
    main()
