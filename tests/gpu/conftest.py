"""The engine on a GPU. What needs one is skipped where there is none, and the run says so; where a test asks for a
`device`, the very same is done on the CPU as well, everywhere: so it is known to be right before a GPU sees it."""

from __future__ import annotations

import pytest
import torch

from tests.engine.conftest import family_folders, tiny_model, tokenizer

__all__ = ["device", "family_folders", "tiny_model", "tokenizer"]

CUDA = torch.cuda.is_available()


def pytest_report_header() -> str:
    """Say whether there is a GPU, and which."""
    return f"GPU: {torch.cuda.get_device_name()}" if CUDA else "GPU: none; what needs one in tests/gpu is skipped"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not CUDA:
            item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each kind of device."""
    return str(request.param)
