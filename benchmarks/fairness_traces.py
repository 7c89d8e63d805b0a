"""Recorded traffic as a scenario: JSON Lines in Mooncake's form, or CSV in the form of Azure and BurstGPT.

JSON Lines: `timestamp` (ms), `input_length` and `output_length` (tokens), `hash_ids` (one for each 512 tokens of the
prompt; without them no prompts share a prefix), and optionally `tenant` and `lane`.
CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure), or `Timestamp`, `Request tokens`, `Response tokens` (BurstGPT).
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.fairness_scenarios import TRACE_BLOCK, Arrival, Scenario
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from protocol.requests import LANES

BLOCKS = 32_768
LONGEST = BLOCKS * BLOCK_TOKENS // 2
"""The longest prompt or output, in tokens, that is taken: both must fit into the simulated replica together."""

_CSV = {  # by the name of the first column: (time, prompt, output)
    "TIMESTAMP": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "Timestamp": ("Timestamp", "Request tokens", "Response tokens"),
}
_GUESSED_LANES = ("interactive", "standard", "interactive", "batch")


class TraceError(Exception):
    """A trace cannot be read; the message names the file, the line and the field."""


def read_trace(path: Path, requests: int, speed: float = 1.0) -> Scenario:
    """The first `requests` of a trace, coming `speed` times as fast. Raises TraceError.

    Where tenants are not named, a conversation's first own block decides its tenant (a few large ones, many small), and
    the tenant its lane: half interactive, a quarter standard, a quarter batch.
    """
    try:
        with path.open(newline="") as file:
            read = _csv_lines if path.suffix.lower() == ".csv" else _json_lines
            arrivals = [_arrival(record, path, line) for line, record in islice(read(path, file), requests)]
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not arrivals:
        raise TraceError(f"{path}: holds no requests")
    first = min(arrival.at for arrival in arrivals)
    ordered = sorted((_moved(arrival, first, speed) for arrival in arrivals), key=lambda arrival: arrival.at)
    return Scenario("trace", tuple(ordered), running=64, blocks=BLOCKS)


def _json_lines(path: Path, file: Iterator[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{where}: is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise TraceError(f"{where}: is not a JSON object")
        yield number, record | {"timestamp": _number(record, "timestamp", where) / 1000}


def _csv_lines(path: Path, file: Iterator[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = csv.DictReader(file)
    header = rows.fieldnames or []
    columns = next((names for first, names in _CSV.items() if first in header), None)
    if columns is None:
        raise TraceError(f"{path}:1: has none of the columns {', '.join(_CSV)}")
    if missing := [name for name in columns if name not in header]:
        raise TraceError(f"{path}:1: {missing[0]}: there is no such column")
    time, prompt, output = columns
    for row in rows:
        where = f"{path}:{rows.line_num}"
        yield (
            rows.line_num,
            {
                "timestamp": _instant(row, time, where),
                "input_length": _number(row, prompt, where),
                "output_length": _number(row, output, where),
            },
        )


def _arrival(record: Mapping[str, Any], path: Path, line: int) -> Arrival:
    where = f"{path}:{line}"
    prompt, output = (_tokens(record, name, where) for name in ("input_length", "output_length"))
    hashes = record.get("hash_ids")
    if hashes is None:
        # Numbers of its own, which no other line has.
        hashes = [-(line * LONGEST + index) for index in range(math.ceil(prompt / TRACE_BLOCK))]
    elif not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
        raise TraceError(f"{where}: hash_ids: is not a list of whole numbers")
    elif len(hashes) * TRACE_BLOCK < prompt // BLOCK_TOKENS * BLOCK_TOKENS:
        raise TraceError(
            f"{where}: hash_ids: {len(hashes)} of {TRACE_BLOCK} tokens are fewer than input_length {prompt}"
        )
    own = hashes[1] if len(hashes) > 1 else hashes[0] if hashes else 0
    guessed = min(int(random.Random(own).paretovariate(0.6)), 40)
    lane = record.get("lane", _GUESSED_LANES[guessed % 4])
    if lane not in LANES:
        raise TraceError(f"{where}: lane: {lane!r} is none of {', '.join(LANES)}")
    tenant = str(record.get("tenant", f"t{guessed}"))
    return Arrival(float(record["timestamp"]), tenant, lane, prompt, output, tuple(hashes))


def _moved(arrival: Arrival, first: float, speed: float) -> Arrival:
    return Arrival(
        (arrival.at - first) / speed, arrival.flow, arrival.lane, arrival.prompt, arrival.output, arrival.hashes
    )


def _tokens(record: Mapping[str, Any], name: str, where: str) -> int:
    value = _number(record, name, where)
    if not (0 <= value <= LONGEST and value == int(value)):
        raise TraceError(f"{where}: {name}: {value:g} is not a whole number from 0 to {LONGEST}")
    return max(1, int(value))


def _number(record: Mapping[str, Any], name: str, where: str) -> float:
    value = record.get(name)
    if value is None:
        raise TraceError(f"{where}: {name}: is missing")
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not math.isfinite(number):
        raise TraceError(f"{where}: {name}: {value!r} is not a number")
    return number


def _instant(row: Mapping[str, Any], name: str, where: str) -> float:
    """Seconds: a number of them, or a date and time."""
    try:
        return datetime.fromisoformat(row[name][:26]).timestamp()
    except (TypeError, ValueError):
        return _number(row, name, where)
