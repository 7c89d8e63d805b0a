"""Settings with a value for each lane, written as `interactive=8,standard=4`: lanes not named keep their defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping

from engine.protocol.requests import Lane
from engine.scheduling.lanes import LANES


def parse_lane_values(text: str, default: str = "") -> dict[Lane, float]:
    """The values by lane, the default's where `text` has none. Raises ValueError saying what is wrong with which part.

    Values are finite and above 0: nothing that is set by lane means anything at 0.
    """
    values = dict(parse_lane_values(default)) if default else {}
    lanes: Mapping[str, Lane] = {lane: lane for lane in LANES}
    given = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, written = (piece.strip() for piece in part.partition("="))
        if not equals or name not in lanes:
            raise ValueError(f"{part!r} is not LANE=VALUE with one of the lanes {', '.join(LANES)}")
        if name in given:
            raise ValueError(f"{name} is given twice")
        try:
            value = float(written)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{part!r}: {written!r} is not a number above 0")
        given.add(name)
        values[lanes[name]] = value
    return values
