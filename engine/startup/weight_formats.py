"""Says at start in which formats of few bits a replica runs, how it computes with them, and what they were measured to
cost."""

from __future__ import annotations

import structlog
import torch

from engine.kernels.packed_linear import MOST_ROWS
from engine.layers.linear import PackedLinear, TiledLinear
from engine.models.decoder import Decoder
from engine.options import KvDtype
from engine.quantization.measured_losses import KV_LOSSES, WEIGHT_LOSSES

logger = structlog.get_logger("engine.startup.weight_formats")


def report_formats(model: Decoder, kv_dtype: KvDtype, like: torch.Tensor) -> None:
    """Log a line for each format of few bits of the model's weights, and one for that of its KV."""
    dtype, device = str(like.dtype).removeprefix("torch."), like.device.type
    products = model.head.linear.tiling.products.values()
    tiled = [product for product in products if isinstance(product, TiledLinear)]
    if tiled:
        many = "a widened copy" if tiled[0].is_copied else "what is widened for each product"
        computed = f"kept in tiles: up to {MOST_ROWS} rows by the kernel packed_linear, more by the library on {many}"
    elif any(isinstance(product, PackedLinear) for product in products):
        computed = "kept as they are"
    else:
        computed = f"decoded to {dtype} when loaded"
        if device == "cuda":
            computed += ": the kernel packed_linear does not multiply them"
    # Nothing but weights has been put there yet.
    resident = {"resident_bytes": torch.cuda.memory_allocated(like.device)} if device == "cuda" else {}
    for form in model.weight_forms:
        loss = _measured(WEIGHT_LOSSES.get(form))
        logger.info("weights of few bits", format=form, computed=computed, **resident, **loss)
    if kv_dtype != "auto":
        logger.info("KV of few bits", format=kv_dtype, **_measured(KV_LOSSES.get(kv_dtype)))


def _measured(loss: float | None) -> dict[str, str]:
    """More bits per byte than without, by the demo model."""
    measured = (
        "not measured"
        if loss is None
        else f"{loss:+.2f} % bits per byte when rounded on loading (demo model, docs/quality.md)"
    )
    return {"loss": measured}
