"""The options of a replica, as its process is started with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.options import TEXT_DRAFTERS, Attention, Device, Dtype, KvDtype, Quantize, Weights
from engine.scheduling.fairness.lanes import LANE_WEIGHTS
from engine.scheduling.fairness.queue_limits import QueueBounds
from engine.scheduling.scheduler import TOKEN_TARGETS
from protocol.requests import Lane


@dataclass(frozen=True)
class ReplicaOptions:
    """What `turnpike engine` gives to the replica that it starts; `model` is the model's folder."""

    model: Path
    address: str
    """Where it listens: `unix:PATH` or `tcp:HOST:PORT`."""
    data: Path
    """The folder of its journal; each replica needs its own."""
    name: str
    link_key: bytes
    """The secret by which gateways prove that they may connect."""
    served: str = ""
    """The served model's name; empty for the name in the model folder."""
    device: Device = "auto"
    dtype: Dtype = "auto"
    quantize: Quantize = "none"
    kv_dtype: KvDtype = "auto"
    weights: Weights = "auto"
    attention: Attention = "exact"
    kv_memory: int = 0
    """Bytes for KV blocks; 0 for a share of what is free."""
    swap_share: float = 0.25
    """How much host memory may hold KV that left the device, as a share of the memory for KV blocks."""
    dram_memory: int = 0
    """The same in bytes; 0 for that share."""
    disk_folder: Path | None = None
    """Where KV is kept on disk; one folder, one replica. None for nowhere."""
    disk_bytes: int = 0
    """The most that it takes there; 0 for none."""
    calibration: Path | None = None
    """The file in which `turnpike calibrate` keeps what it measured of that disk."""
    trials: Path | None = None
    """The file in which what trials of kernels found is kept for the next start; None for nowhere."""
    speculation: Sequence[str] = TEXT_DRAFTERS
    """The drafters by name, the preferred first."""
    draft_model: Path | None = None
    """The folder of a draft model or a head: that of `model` for its own layer for multi-token prediction."""
    max_loras: int = 16
    """Adapters that are ready at a time; 0: none are computed."""
    lora_memory: int = 4 << 30
    """Most bytes of adapters in host memory."""
    max_running: int = 0
    """Requests in a step; 0 for what suits the device."""
    token_budget: int = 0
    """Tokens in a step; 0 for what suits the device."""
    context: int = 0
    """Tokens of a prompt and its output together; 0 for the model's own limit."""
    drain_s: float = 5.0
    """Seconds that running requests may go on after SIGTERM."""
    stall_s: float = 120.0
    """Seconds that a step may last, beyond ten times what the largest step takes, before the replica ends."""
    queue_timeouts: Mapping[Lane, float] = field(default_factory=dict)
    """Seconds that a request may wait in its lane before it is refused; 0 or none for no limit."""
    lane_weights: Mapping[Lane, float] = field(default_factory=lambda: LANE_WEIGHTS)
    """Shares of engine time."""
    token_targets: Mapping[Lane, float] = field(default_factory=lambda: TOKEN_TARGETS)
    """µs between two tokens of a request."""
    bounds: QueueBounds = field(default_factory=QueueBounds)
    """How much may wait."""
    parent_pid: int | None = None
    """The process with which the replica ends."""
