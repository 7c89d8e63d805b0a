"""Python imports this at its start, where a test put its folder on the path: a replica then stops when it is told to,
in the middle of a step that verifies drafts, so that the test can kill it or its gateway there.

`TURNPIKE_TEST_VERIFYING` names a file that holds two numbers: so many steps with drafts go by, of at least so many
requests that all have some output. In the next one the replica stops where the model has computed all rows and nothing
is drawn yet: it renames the file to `….reached`, and goes on when the test has removed that. Its drafts cost nothing by
its table, so that it drafts on a busy machine too.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LONGEST_S = 60.0


class _Finder(importlib.abc.MetaPathFinder):
    """Changes a module as soon as it is there."""

    def __init__(self, module: str, change: Callable[[Any], None]) -> None:
        self._module, self._change = module, change

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._change(module)

        loader.exec_module = exec_module
        return spec


def _stop(runner: Any) -> None:
    runner.draw_runs = _stopping(runner.draw_runs)


def _draft_always(planner: Any) -> None:
    begin = planner.DraftPlanner.__init__
    planner.DraftPlanner.__init__ = lambda self, _costs, most: begin(self, None, most)


def _stopping(draw_runs: Any) -> Any:
    armed = Path(os.environ["TURNPIKE_TEST_VERIFYING"])
    reached = armed.with_name(armed.name + ".reached")

    def draw(works: Any, *rest: Any) -> Any:
        if armed.exists():
            left, least = map(int, armed.read_text().split())
            if len(works) >= least and any(work.drafts for work in works) and all(map(_has_output, works)):
                if left:
                    armed.write_text(f"{left - 1} {least}")
                else:
                    armed.rename(reached)
                    deadline = time.monotonic() + _LONGEST_S
                    while reached.exists() and time.monotonic() < deadline:
                        time.sleep(0.01)
        return draw_runs(works, *rest)

    return draw


def _has_output(work: Any) -> bool:
    return bool(work.request.output > 1)


if "TURNPIKE_TEST_VERIFYING" in os.environ:
    sys.meta_path.insert(0, _Finder("engine.execution.model_runner", _stop))
    sys.meta_path.insert(0, _Finder("engine.speculation.planner", _draft_always))
