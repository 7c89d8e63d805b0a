"""Settings of the fleet."""

from __future__ import annotations

from msgspec import Struct


class FleetOptions(Struct, frozen=True, kw_only=True):
    """Times in seconds.

    A replica is well while its last beat is younger than `beat_timeout` and, with work to do, its step counter moved
    within `step_timeout`. A link silent for `silence` is closed. Dialing backs off from `backoff_first` to
    `backoff_most`. A stream may be `credit_window` tokens ahead of its reader; the replica hears of progress each
    `credit_step` tokens.
    """

    beat_timeout: float = 5.0
    step_timeout: float = 30.0
    silence: float = 15.0
    dial_timeout: float = 5.0
    backoff_first: float = 0.05
    backoff_most: float = 0.25
    credit_window: int = 256
    credit_step: int = 32
