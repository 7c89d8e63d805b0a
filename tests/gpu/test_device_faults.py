"""A fault of a kernel ends the replica's engine, and no request is blamed for it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.gpu


def test_a_fault_of_a_kernel_is_told_by_the_next_check() -> None:
    """In a process of its own: what follows on the device fails as well."""
    code = """
        from types import SimpleNamespace

        import torch

        from engine.execution.model_runner import ModelRunner
        from engine.scheduling.step_work import DeviceFailed

        runner = SimpleNamespace(device=torch.device("cuda"))
        there = torch.zeros(4, device="cuda")
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            ModelRunner.check_device(runner)
        else:
            raise SystemExit("there was room for everything")
        there[torch.tensor([9], device="cuda")]
        for _ in range(2):
            try:
                ModelRunner.check_device(runner)
            except DeviceFailed as error:
                print(error)
            else:
                raise SystemExit("the fault was not told")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("assert") == 2
