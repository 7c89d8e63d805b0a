"""`turnpike replay`: run a receipt's request again, and compare the tokens of both answers."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

import msgspec

from turnpike.command_line import CommandError, CommandParser
from turnpike.commands.recount import dialect_of, read_exchange

if TYPE_CHECKING:
    from turnpike.settings.settings import Settings

_KEY = "TURNPIKE_KEY"
_TIMEOUT_S = 600.0
_VERSION = "2023-06-01"


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike replay`."""
    parser.runs(replay)
    parser.add_argument("request", metavar="REQUEST", help="the JSON body that was sent")
    parser.add_argument("answer", metavar="ANSWER", help="the whole JSON answer, with its receipts")
    parser.add_argument("--gateway", required=True, metavar="URL", help=f"where to ask again, with the key in {_KEY}")


def replay(_settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike replay`: 1 if the answers differ. The second one is billed like any other."""
    body, answer = read_exchange(arguments.request, arguments.answer)
    request = _repeatable(body)
    again = _ask(arguments.gateway, dialect_of(answer), request)
    differences = compare(answer["receipts"], again.get("receipts") or [])
    for line in differences:
        print(line)
    print(f"{len(differences)} differences" if differences else "the same tokens, by the same numerics")
    return 1 if differences else 0


def _repeatable(body: bytes) -> dict[str, Any]:
    """The request, whole instead of streamed. Raises CommandError for one whose answer is drawn by chance."""
    request = msgspec.json.decode(body)
    if not isinstance(request, dict):
        raise CommandError("the request is no JSON object")
    if request.get("temperature") != 0 and request.get("seed") is None:
        raise CommandError("its answer was drawn by chance: only requests with temperature 0 or a seed can be replayed")
    return {name: value for name, value in request.items() if name != "stream_options"} | {"stream": False}


def _ask(url: str, path: str, request: dict[str, Any]) -> dict[str, Any]:
    import httpx

    key = os.environ.get(_KEY)
    if not key:
        raise CommandError(f"{_KEY} has no key")
    headers = {"x-api-key": key, "anthropic-version": _VERSION, "x-turnpike-receipt": "true"}
    try:
        answer = httpx.post(url.rstrip("/") + path, json=request, headers=headers, timeout=_TIMEOUT_S)
        said = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise CommandError(f"--gateway: {type(error).__name__}: {error}") from error
    if answer.status_code != httpx.codes.OK or not isinstance(said, dict):
        raise CommandError(f"--gateway: the request is answered with {answer.status_code}: {answer.text[:300]}")
    return said


def compare(before: list[Any], after: list[Any]) -> list[str]:
    """What differs between the receipts of two answers to the same request."""
    if len(before) != len(after):
        return [f"{len(after)} receipts, {len(before)} before"]
    differences = []
    for old, new in zip(before, after, strict=True):
        called = f"event {old['event']['id']}"
        if old["event"]["model_digest"] != new["event"]["model_digest"]:
            differences.append(f"{called}: other numerics answered, {new['event']['model_digest'][:16]}: no comparison")
            continue
        if old["answer"]["prompt"] != new["answer"]["prompt"]:
            differences.append(f"{called}: the prompt has other tokens now")
        for choice, pair in enumerate(zip(old["answer"]["output"], new["answer"]["output"], strict=False)):
            if pair[0] != pair[1]:
                differences.append(f"{called}: choice {choice} has other tokens now")
        for name in ("prompt", "output"):
            counts = old["event"]["counts"].get(name, 0), new["event"]["counts"].get(name, 0)
            if counts[0] != counts[1]:
                differences.append(f"{called}: {counts[1]} tokens of {name}, {counts[0]} before")
    return differences
