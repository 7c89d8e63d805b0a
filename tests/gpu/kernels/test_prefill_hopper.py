"""The prefill kernel for Hopper against the plain one, bit by bit."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.kernels.interpreter import INTERPRETED

pytestmark = pytest.mark.gpu


def test_it_has_the_bits_of_the_plain_kernel() -> None:
    if INTERPRETED or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper")
    from benchmarks.gpu.prefill import check

    report: dict[str, dict[str, object]] = {}
    check(report, 24)
    assert report["bits"]["differs"] == []
