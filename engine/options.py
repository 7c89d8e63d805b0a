"""What a replica is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.scheduling.fairness.lanes import WEIGHTS
from engine.scheduling.fairness.queue_limits import QueueBounds
from engine.scheduling.scheduler import TOKEN_TARGETS
from protocol.requests import Lane

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16"]
Quantize = Literal["none", "fp8", "mxfp4"]
KvDtype = Literal["auto", "fp8"]
Weights = Literal["auto", "decoded", "packed"]


@dataclass(frozen=True)
class ReplicaOptions:
    """`address` is `unix:PATH` or `tcp:HOST:PORT`; `data` the folder of the journal, for this replica alone.

    `kv_memory` is bytes for KV blocks, 0 for what is free; `swap_share` how much host memory may hold the KV of
    preempted requests, as a share of that; `context` tokens, 0 for the model's own; `served` the served
    model's name, empty for the one in the model folder.
    `max_running` and `token_budget`: how many requests, and tokens, a step has at most; 0 for what suits the device.
    `quantize`: what linear weights are rounded to on loading. `weights`: whether weights in few bits are decoded on
    loading (faster) or kept like that (smaller); `auto` decodes what fits well into memory. `kv_dtype`: what KV is
    stored in, `auto` for the model's own type. `drain_s`: how long running requests may go on after SIGTERM.
    `stall_s`: how long a step may last, beyond ten times what the fullest should, before the replica ends.
    `patience`: how many seconds a request may wait in its lane before it is refused; 0 for ever. `lane_weights`: shares
    of engine time. `token_targets`: µs between two tokens. `bounds`: how much may wait by flow and lane; `max_waiting`:
    how many requests in all.
    """

    model: Path
    address: str
    data: Path
    name: str
    link_key: bytes
    served: str = ""
    device: Device = "auto"
    dtype: Dtype = "auto"
    quantize: Quantize = "none"
    kv_dtype: KvDtype = "auto"
    weights: Weights = "auto"
    kv_memory: int = 0
    swap_share: float = 0.25
    max_running: int = 0
    max_waiting: int = 24_576
    token_budget: int = 0
    context: int = 0
    drain_s: float = 5.0
    stall_s: float = 120.0
    patience: Mapping[Lane, float] = field(default_factory=dict)
    lane_weights: Mapping[Lane, float] = field(default_factory=lambda: WEIGHTS)
    token_targets: Mapping[Lane, float] = field(default_factory=lambda: TOKEN_TARGETS)
    bounds: QueueBounds = field(default_factory=QueueBounds)
    parent_pid: int | None = None
