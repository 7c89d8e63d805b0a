"""Speed with drafts and without: `python -m benchmarks.speculation --model DIR --json OUT`.

Both run in one process on one engine, in pairs whose order alternates, so that a slow minute of the machine falls on
both: the requests of one run say `speculation: off`. Told are the medians of the pairs' ratios (plain time over time
with drafts, above 1 is quicker), by the clock and by CPU time, which a busy machine disturbs less. The tokens of both
runs are compared: they must be the same.

- `nothing to copy`: random prompts, sampled output, batches of 1 to 64. It must not be slower.
- `copying`: an answer that stands in the prompt is asked for again.
- `asked again`: a question that the scope has asked before; drafts come from the earlier answer.
- `ordinary`: questions of the model's own list, for the first time; with `--draft-model` its drafts.
- `forced`: objects with long keys under a JSON schema.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from engine.core.engine import Engine
from engine.grammar.llguidance_grammar import end_tokens
from engine.options import DRAFTERS, parse_speculation
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from gateway.generation_request import Text, Turn
from gateway.served_models.served_model import ServedModel, load_served_model
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment, Tokens

Mode: TypeAlias = Literal["auto", "off"]
Outputs: TypeAlias = dict[str, list[int]]
BATCHES = (1, 4, 8, 16, 32, 64)
CASES = ("nothing to copy", "ordinary", "copying", "asked again", "forced")
PAIRS = 15
OUTPUT = 48
SEED = 7
SCHEMA = {
    "type": "object",
    "properties": {
        name: {"enum": ["yes", "no"]}
        for name in ("the_function_raises_an_exception", "the_function_returns_a_value", "the_arguments_are_optional")
    },
    "additionalProperties": False,
}
SCHEMA["required"] = list(SCHEMA["properties"])  # type: ignore[call-overload]  # it is a dict
QUESTIONS = (
    "What does textwrap.dedent do?",
    "What does json.dumps do?",
    "What does os.path.join do?",
    "What does shutil.copyfile do?",
    "What does itertools.chain do?",
    "What does functools.reduce do?",
)


class Bench:
    """An engine, and requests of it that are run to their end."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sent = 0

    def run(self, requests: Sequence[Generate], mode: Mode, scope: str = "bench") -> tuple[float, float, Outputs]:
        """Seconds by the clock, seconds of CPU time, and what was put out."""
        self._sent += 1
        ids = {f"{self._sent}/{number}": request for number, request in enumerate(requests)}
        scopes = {scope: Scope(scope, scope.encode().ljust(32), b"key".ljust(32), retention=3600.0)}
        outputs: Outputs = {}
        for id, request in ids.items():
            fields = {name: getattr(request, name) for name in request.__struct_fields__}
            fields |= {"id": id, "speculation": mode, "segments": (Segment(len(request.tokens), scope),)}
            self.engine.add(Generate(**fields), scopes)
            outputs[id.partition("/")[2]] = []
        began, began_cpu, left = time.perf_counter(), time.process_time(), len(ids)
        while left:
            for event in self.engine.step().events:
                if isinstance(event, Tokens):
                    outputs[event.id.partition("/")[2]] += event.tokens
                elif isinstance(event, Done):
                    if event.reason not in ("stop", "length"):
                        raise SystemExit(f"request {event.id} ended by {event.reason}: {event.error}")
                    left -= 1
        return time.perf_counter() - began, time.process_time() - began_cpu, outputs


def request(tokens: Sequence[int], output: int, stops: tuple[int, ...] = (), **fields: Any) -> Generate:
    """A request; its id, segments and scope come when it is run."""
    sampling = Sampling(
        output, temperature=fields.pop("temperature", 0.0), seed=fields.pop("seed", 0), stop_tokens=stops
    )
    return Generate("", 1, (), list(tokens), sampling, output, **{"read": False, "store": "none", **fields})


def in_pairs(bench: Bench, requests: Sequence[Generate], pairs: int, scope: str = "bench") -> dict[str, Any]:
    """Ratios of plain runs to runs with drafts."""
    bench.run(requests, "auto", scope)  # warm up
    before = bench.engine.speculator.totals
    drafted, accepted, decodes, emitted = before.drafted, before.accepted, before.decodes, before.emitted
    clock, cpu, tokens_per_s = [], [], []
    for pair in range(pairs):
        order: tuple[Mode, Mode] = ("auto", "off") if pair % 2 else ("off", "auto")
        took = {mode: bench.run(requests, mode, scope) for mode in order}
        if took["auto"][2] != took["off"][2]:
            raise SystemExit("the outputs with drafts are not those of plain decoding")
        clock.append(took["off"][0] / took["auto"][0])
        cpu.append(took["off"][1] / took["auto"][1])
        tokens_per_s.append(sum(map(len, took["auto"][2].values())) / took["auto"][0])
    after = bench.engine.speculator.totals
    return {
        "requests": len(requests),
        "ratio": round(statistics.median(clock), 3),
        "ratio_cpu": round(statistics.median(cpu), 3),
        "tokens_per_s": round(statistics.median(tokens_per_s), 1),
        "drafted": after.drafted - drafted,
        "accepted": after.accepted - accepted,
        # half of these decodes were told to speculate
        "tokens_per_decode": round((after.emitted - emitted) / (after.decodes - decodes), 3),
    }


def conversation(model: ServedModel, *texts: str) -> list[int]:
    """The prompt of turns of a user and the model, a user's last."""
    turns = tuple(
        Turn("assistant" if number % 2 else "user", (Text(text, f"$.messages[{number}].content"),))
        for number, text in enumerate(texts)
    )
    return model.prompt(turns).tokens


def measure(
    bench: Bench,
    model: ServedModel,
    stops: tuple[int, ...],
    pairs: int,
    cases: Sequence[str],
    batches: Sequence[int],
    log: Callable[[str], None],
) -> Any:
    """These cases, the first of them with batches of these sizes."""
    figures: dict[str, Any] = {name: {} for name in cases}
    chance, vocabulary = random.Random(SEED), bench.engine.executor.vocabulary
    for batch in batches if CASES[0] in cases else ():
        prompts = [[chance.randrange(vocabulary) for _ in range(60)] for _ in range(batch)]
        requests = [request(prompt, OUTPUT, temperature=1.0, seed=at) for at, prompt in enumerate(prompts)]
        figures["nothing to copy"][str(batch)] = in_pairs(bench, requests, pairs)
        log(f"nothing to copy, {batch}: {figures['nothing to copy'][str(batch)]}")
    answers = []
    detokenizer = model.detokenizer()
    for question in QUESTIONS:
        _, _, outputs = bench.run([request(conversation(model, question), 200, stops)], "off")
        answers.append("".join(map(detokenizer.feed, [token for token in outputs["0"] if token not in stops])))
    copies = [
        request(conversation(model, question, answer, question), 200, stops)
        for question, answer in zip(QUESTIONS, answers, strict=True)
    ]
    for name, requests in (
        ("ordinary", [request(conversation(model, question), 200, stops) for question in QUESTIONS]),
        ("copying", copies),
        (
            "asked again",
            [
                request(conversation(model, question), 200, stops, read=True, store="all", retain=())
                for question in QUESTIONS
            ],
        ),
        (
            "forced",
            [
                request(conversation(model, question), 200, stops, grammar=json.dumps({"json_schema": SCHEMA}))
                for question in QUESTIONS[:3]
            ],
        ),
    ):
        if name not in cases:
            continue
        each = [in_pairs(bench, [one], max(3, pairs // 3), name) for one in requests]
        ratios = {
            key: round(statistics.geometric_mean([one[key] for one in each]), 3) for key in ("ratio", "ratio_cpu")
        }
        figures[name] = {
            **ratios,
            "drafted": sum(one["drafted"] for one in each),
            "accepted": sum(one["accepted"] for one in each),
            "each": each,
        }
        log(f"{name}: {ratios} {figures[name]['drafted']} drafted, {figures[name]['accepted']} accepted")
    return figures


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/stdlib-qa"))
    parser.add_argument("--speculation", default="auto", help=f"auto, or of {', '.join(DRAFTERS)}")
    parser.add_argument("--draft-model", type=Path, help="the folder of a draft model or a head")
    parser.add_argument(
        "--always",
        action="store_true",
        help="verify all drafts, whatever they cost: on a machine that is too busy to measure steps",
    )
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--cases", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as data:
        options = ReplicaOptions(
            arguments.model,
            "unix:unused",
            Path(data),
            "bench",
            b"",
            speculation=parse_speculation(arguments.speculation, draft_model=arguments.draft_model is not None),
            draft_model=arguments.draft_model,
            trials=Path(tempfile.gettempdir()) / "turnpike-bench-trials.json",
        )
        assembled = assemble(options)
    assembled.engine.input_processor.grammars = assembled.grammars
    for _ in assembled.warm_up:
        pass
    model = load_served_model(arguments.model)
    if arguments.always:
        assembled.engine.speculator.planner.costs = None
    costs = assembled.engine.speculator.planner.costs
    batches = [int(batch) for batch in arguments.batches.split(",")]
    figures = {
        "model": assembled.model.name,
        "speculation": arguments.speculation,
        "always": arguments.always,
        "draft_model": str(arguments.draft_model or ""),
        "pairs": arguments.pairs,
        "load_average": os.getloadavg(),
        "step_us": {} if costs is None else costs.shown(),
        "cases": measure(
            Bench(assembled.engine),
            model,
            end_tokens(arguments.model),
            arguments.pairs,
            arguments.cases.split(","),
            batches,
            print,
        ),
    }
    figures["load_average_after"] = os.getloadavg()
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    else:
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
