"""Tests here are for a machine with a GPU; elsewhere none of them is collected, and the run says so."""

from __future__ import annotations

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


def pytest_report_header() -> str:
    """Say why there is nothing, where there is nothing."""
    return f"GPU: {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "GPU: none, tests/gpu not collected"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.nodeid.split("/"):
            item.add_marker(pytest.mark.gpu)
