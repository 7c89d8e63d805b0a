"""What a replica says of a format's loss at start is what docs/quality.md says."""

from __future__ import annotations

import re
from pathlib import Path

from engine.quantization.encoding import ENCODERS
from engine.quantization.measured_losses import KV_LOSSES, WEIGHT_LOSSES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "quality.md").read_text()
ROW = re.compile(r"^\| `?([a-z0-9-]+)`? \| (8 bits|as it is) \| [0-9.]+ \| ([+−0-9.]+) \|", re.M)
FORMS = {"fp8": "fp8", "mxfp4": "mxfp4", "nvfp4": "nvfp4", "int4": "int4 g128", "int4-g64": "int4 g64"}
FORMS["int4-g32"] = "int4 g32"


def losses(kv: str) -> dict[str, float]:
    rows = {name: float(loss.replace("−", "-")) for name, stored, loss in ROW.findall(PAGE) if stored == kv}
    rows.pop("none" if kv == "as it is" else "", None)
    return rows


def test_the_page_and_the_log_say_the_same():
    assert {FORMS[name]: loss for name, loss in losses("as it is").items()} == WEIGHT_LOSSES
    assert {"fp8": losses("8 bits")["none"]} == KV_LOSSES


def test_each_format_that_is_made_on_loading_is_measured():
    assert {FORMS[name] for name in ENCODERS} == set(WEIGHT_LOSSES)
