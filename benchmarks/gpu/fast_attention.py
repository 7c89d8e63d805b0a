"""Long prompts by exact and by fast attention, in one engine: `python -m benchmarks.gpu.fast_attention --json OUT`

Takes the arguments of `benchmarks.engine_gpu`. Prompts are new ones each time, and so cold.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import engine_gpu

TOKENS = (8_192, 32_768, 120_000)
CONTEXT = 131_072
STEP = ("max_running=64", "token_budget=8704")
"""As many prompt tokens in a step as by default, and fewer graphs to capture."""

_WARM_UP_S = 5
"""Until libraries have made what they make once, while the engine is idle."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, and write a report."""
    import torch  # noqa: PLC0415

    from benchmarks.gpu.in_process import InProcessDriver  # noqa: PLC0415
    from engine.execution.cuda.runner import CudaRunner  # noqa: PLC0415

    args = engine_gpu.parsed(argv)
    given = dict(args.setting)
    wanted = {"attention": "fast", "context": str(CONTEXT), **dict(one.split("=") for one in STEP), **given}
    args.setting, args.in_process = list(wanted.items()), True
    report: dict[str, Any] = {"shape": args.shape, "precision": args.precision, "torch": str(torch.__version__)}
    with tempfile.TemporaryDirectory() as folder:
        driver = InProcessDriver(engine_gpu.settings_for(args, Path(folder)), "none")
        try:
            runner = driver.engine.executor.runner
            assert isinstance(runner, CudaRunner)
            fast = runner.prefill.fast
            report |= {
                "machine": driver.machine,
                "start_s": driver.ready_s,
                "libraries": driver.engine.executor.attention,
            }
            print(json.dumps(report), flush=True)
            time.sleep(_WARM_UP_S)
            chance = random.Random(11)
            for repeat in range(args.repeats):
                for tokens in TOKENS:
                    for way in ("exact", "fast"):
                        runner.prefill.fast = fast if way == "fast" else None
                        prompt = [chance.randrange(100, 120_000) for _ in range(tokens)]
                        took = driver.run([prompt], 1, args.limit)
                        report.setdefault(f"{tokens} {way}", []).append(took["s"])
                        print(repeat, tokens, way, took["s"], flush=True)
            args.json.write_text(json.dumps(report, indent=1))
        finally:
            driver.close()


if __name__ == "__main__":
    main()
