#!/usr/bin/env python3
"""Verify an invoice against receipts: python3 verifier.py invoice.json receipts.jsonl [--keys keys.json]

This file needs Python 3.11 and nothing else: copy it wherever you want to check what you were billed. Signatures are
checked by arithmetic of its own (RFC 8032), faster where the package `cryptography` is installed.

It reads days with their numbered events and prices (GET /v1/receipts/DAY), receipts that came with answers, in any
order of files, and names each thing that does not hold. It exits 0 if all holds, 1 if something does not, 2 if it
cannot read its input.
"""

from __future__ import annotations

import argparse
import json
import sys
from base64 import urlsafe_b64decode
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256, sha512
from itertools import pairwise
from typing import Any

MOST_NAMED = 20
"""Findings of one kind and day that are named one by one; of more the rest is counted."""


# ---------------------------------------------------------------- canonical JSON, trees, signatures


def canonical(value: Any) -> bytes:
    """Canonical JSON as RFC 8785 has it, of objects with ASCII names, lists, texts and integers."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def merkle_root(leaves: list[bytes]) -> bytes:
    """The root of RFC 6962 over hashes of leaves."""
    if not leaves:
        return sha256(b"").digest()
    while len(leaves) > 1:
        above = [sha256(b"\1" + leaves[at] + leaves[at + 1]).digest() for at in range(0, len(leaves) - 1, 2)]
        leaves = above + leaves[len(above) * 2 :]
    return leaves[0]


def root_of_path(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes | None:
    """The root that a path leads to (RFC 9162, 2.1.3.2); None if it has not the length of one."""
    if not 0 <= index < size:
        return None
    last, root = size - 1, leaf
    for beside in path:
        if not last:
            return None
        if index & 1 or index == last:
            root = sha256(b"\1" + beside + root).digest()
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            root = sha256(b"\1" + root + beside).digest()
        index, last = index >> 1, last >> 1
    return None if last else root


_P = 2**255 - 19
_Q = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
Point = tuple[int, int, int, int]


def _add(a: Point, b: Point) -> Point:
    u, v = (a[1] - a[0]) * (b[1] - b[0]) % _P, (a[1] + a[0]) * (b[1] + b[0]) % _P
    w, z = 2 * a[3] * b[3] * _D % _P, 2 * a[2] * b[2] % _P
    e, f, g, h = v - u, z - w, z + w, v + u
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _multiply(scalar: int, point: Point) -> Point:
    product: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            product = _add(product, point)
        point, scalar = _add(point, point), scalar >> 1
    return product


def _point(encoded: bytes) -> Point | None:
    y = int.from_bytes(encoded, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (not x and sign):
        return None
    x = _P - x if x & 1 != sign else x
    return x, y, 1, x * y % _P


_BASE = _point((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))


def is_signed_by_arithmetic(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether an Ed25519 signature is right, by RFC 8032, 5.1.7."""
    if len(public) != 32 or len(signature) != 64:
        return False
    a, r, s = _point(public), _point(signature[:32]), int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= _Q or _BASE is None:
        return False
    digest = int.from_bytes(sha512(signature[:32] + public + message).digest(), "little") % _Q
    left, right = _multiply(s, _BASE), _add(r, _multiply(digest, a))
    same_x = (left[0] * right[2] - right[0] * left[2]) % _P == 0
    return same_x and (left[1] * right[2] - right[1] * left[2]) % _P == 0


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether an Ed25519 signature is right."""
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  # not everybody has it
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    except ImportError:
        return is_signed_by_arithmetic(public, message, signature)
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def from_base64(text: str) -> bytes:
    """What base64 for URLs without padding stands for."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


# ---------------------------------------------------------------- what was read


class Unreadable(Exception):
    """The input is not what this program reads; the message says where."""


@dataclass
class Day:
    """A day: its head, the lines of its events, and where in the files each stands."""

    head: dict[str, Any]
    lines: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@dataclass
class Evidence:
    """All that the files have."""

    days: dict[str, Day] = field(default_factory=dict)
    loose: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Events of days without a head."""
    prices: dict[int, dict[str, Any]] = field(default_factory=dict)
    receipts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def read(self, name: str, lines: Iterable[bytes]) -> None:
        """Read a file of JSON lines. Raises Unreadable."""
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{name}:{number}"
                try:
                    self._take(where, json.loads(line))
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                    raise Unreadable(
                        f"{where}: this is no line of receipts ({type(error).__name__}: {error})"
                    ) from error

    def _take(self, where: str, value: dict[str, Any]) -> None:
        match value["kind"]:
            case "day":
                known = self.days.setdefault(value["day"], Day(value))
                if known.head != value and _unsigned(known.head) != _unsigned(value):
                    self.findings.append(f"{where}: {value['day']} has two heads that say different things")
            case "event":
                value["event"]["id"], value["n"] + 0, value["digest"] + ""
                day = self.days.get(value["day"])
                (self.loose if day is None else day.lines).append((where, value))
            case "prices":
                rows = {(meter, lane, tier): micro for meter, lane, tier, micro in value["rows"]}
                known_prices = self.prices.setdefault(value["version"], value | {"rows": rows})
                if known_prices["rows"] != rows or known_prices["currency"] != value["currency"]:
                    self.findings.append(f"{where}: price version {value['version']} is there twice, with other prices")
            case "receipt":
                value["event"]["id"], value["signed"]["root"] + "", value["answer"]["prompt"] + ""
                self.receipts.append((where, value))
            case other:
                raise ValueError(f"kind is {other!r}")

    def settle(self) -> None:
        """Put events under heads that came after them."""
        for where, line in self.loose:
            day = self.days.get(line["day"])
            if day is None:
                self.findings.append(
                    f"{where}: event {line['event']['id']} is of {line['day']}, which has no head here"
                )
            else:
                day.lines.append((where, line))
        self.loose = []


def _unsigned(head: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in head.items() if name not in ("key", "sig")}


def read_keys(text: bytes) -> dict[str, bytes]:
    """The public keys of a JWK set by their names. Raises Unreadable."""
    try:
        keys = {key["kid"]: from_base64(key["x"]) for key in json.loads(text)["keys"] if key["crv"] == "Ed25519"}
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"the keys are no JWK set ({type(error).__name__}: {error})") from error
    for kid, public in keys.items():
        if sha256(public).hexdigest()[: len(kid)] != kid or len(kid) < 16:
            raise Unreadable(f"the key {kid} is not what its name says")
    return keys


# ---------------------------------------------------------------- checks


class Verification:
    """All checks. `findings` has a sentence for each thing that does not hold, `summary` what was compared."""

    def __init__(self, invoice: dict[str, Any] | None, evidence: Evidence, keys: dict[str, bytes] | None) -> None:
        self.invoice = invoice
        self.evidence = evidence
        self.keys = keys
        self.findings = evidence.findings
        self.summary: list[str] = []
        self._signatures: dict[bytes, bool] = {}
        self._events: dict[str, tuple[str, int, str]] = {}
        """Each event's day, number and digest."""
        self._units: Counter[tuple[Any, ...]] = Counter()
        self._bad_costs = 0

    def run(self) -> None:
        """Do all checks."""
        self.evidence.settle()
        previous = ""
        for name in sorted(self.evidence.days):
            day = self.evidence.days[name]
            self._check_head(day.head, previous)
            self._check_day(day)
            previous = sha256(canonical(_unsigned(day.head))).hexdigest()
        self._check_receipts()
        if self.invoice is not None:
            self._check_invoice(self.invoice)
        if self.keys is None:
            self.summary.append("signatures were not checked: give --keys")

    def _name(self, what: str, items: Iterable[str]) -> None:
        """Add a finding for each item; of many the first ones and a count."""
        rest = 0
        for n, item in enumerate(items):
            if n < MOST_NAMED:
                self.findings.append(f"{what}{item}")
            else:
                rest += 1
        if rest:
            self.findings.append(f"{what}{rest} more")

    def _is_signed(self, signed: dict[str, Any], what: str) -> None:
        if self.keys is None:
            return
        text = canonical({name: value for name, value in signed.items() if name != "sig"})
        place = sha256(text + str(signed.get("sig")).encode()).digest()
        public = self.keys.get(str(signed.get("key")))
        if public is None:
            self.findings.append(f"{what} is signed by {signed.get('key')}, which is none of the keys")
            return
        if place not in self._signatures:
            try:
                signature = from_base64(str(signed.get("sig", "")))
            except ValueError:
                signature = b""
            self._signatures[place] = is_signed(public, text, signature)
        if not self._signatures[place]:
            self.findings.append(f"{what} has a wrong signature")

    def _check_head(self, head: dict[str, Any], previous: str) -> None:
        self._is_signed(head, f"the head of {head['day']}")
        if head["previous"] != previous and self._follows(head):
            self.findings.append(f"the head of {head['day']} does not follow that of the day before")

    def _follows(self, head: dict[str, Any]) -> bool:
        """Whether the day before is here too, or this is the first of its period."""
        day = head["day"]
        return day.endswith("-01") or f"{day[:8]}{int(day[8:]) - 1:02d}" in self.evidence.days

    def _check_day(self, day: Day) -> None:
        head, name = day.head, day.head["day"]
        numbers = [line["n"] for _, line in day.lines]
        counted = Counter(numbers)
        twice = (f"number {n} is there {times} times" for n, times in sorted(counted.items()) if times > 1)
        self._name(f"{name}: ", twice)
        missing = sorted(set(range(1, head["events"] + 1)) - counted.keys())
        self._name(f"{name}: ", (f"number {n} is missing" for n in missing))
        more = (n for n in sorted(counted) if not 1 <= n <= head["events"])
        self._name(f"{name}: ", (f"number {n} is not one of 1 to {head['events']}" for n in more))
        moved = (
            f"number {after} stands after number {before}" for before, after in pairwise(numbers) if after < before
        )
        self._name(f"{name}: ", moved)
        self._name(
            f"{name}: ", (found for where, line in day.lines for found in self._event_findings(head, where, line))
        )
        leaves = {line["n"]: line["digest"] for _, line in day.lines}
        if not missing:
            hashes = [
                sha256(b"\0" + n.to_bytes(8, "big") + _digest(leaves[n])).digest() for n in range(1, head["events"] + 1)
            ]
            if merkle_root(hashes).hex() != head["root"]:
                self.findings.append(f"{name}: its events have another root than its head: one was altered or moved")
        cost = sum(_integer(line["event"].get("cost_pico")) for _, line in day.lines)
        if str(cost) != head["cost_pico"]:
            self.findings.append(f"{name}: its events cost {cost}, its head says {head['cost_pico']}")
        late = sum("own_day" in line for _, line in day.lines)
        if late != head["late"]:
            self.findings.append(f"{name}: {late} of its events are of earlier days, its head says {head['late']}")

    def _event_findings(self, head: dict[str, Any], where: str, line: dict[str, Any]) -> Iterator[str]:
        """What does not hold of an event in itself."""
        event, n, day = line["event"], line["n"], line["day"]
        called = f"number {n}, event {event['id']} ({where})"
        if sha256(canonical(event)).hexdigest() != line["digest"]:
            yield f"{called} was altered: it has another digest"
        if event.get("tenant") != head["tenant"]:
            yield f"{called} is another tenant's, {event.get('tenant')}"
        known = self._events.get(event["id"])
        if known is not None:
            yield f"{called} is there twice, before it as number {known[1]} of {known[0]}"
        self._events[event["id"]] = (day, n, line["digest"])
        own = datetime.fromtimestamp(_integer(event.get("admitted_at")) // 1_000_000, UTC).date().isoformat()
        if own > day or line.get("own_day", day) != own:
            yield f"{called} is of {own}, and is filed as of {line.get('own_day', day)}"
        yield from (f"{called} {problem}" for problem in self._cost_findings(event))
        period = own[:7] if own[:7] < head["period"] else ""
        for meter, units in event.get("units", {}).items():
            key = (event["project"], event["model"], meter, event["lane"], event["context_from"])
            self._units[(*key, event["price_version"], period)] += _integer(units)

    def _cost_findings(self, event: dict[str, Any]) -> Iterator[str]:
        prices = self.evidence.prices.get(event["price_version"])
        if prices is None:
            yield f"has price version {event['price_version']}, which is not here"
            return
        cost, tier = 0, event["context_from"]
        for meter, units in event.get("units", {}).items():
            micro = _price(prices["rows"], meter, event["lane"], tier)
            if micro is None:
                yield f"has {meter} in the lane {event['lane']}, which has no price"
                return
            cost += _integer(units) * micro
        if str(cost) != event["cost_pico"]:
            yield f"costs {event['cost_pico']}, and recomputes to {cost}"

    def _check_receipts(self) -> None:
        """Each receipt that came with an answer is signed, and its event is in a file as the receipt says."""
        held: dict[str, str] = {}
        found: list[str] = []
        for where, receipt in self.evidence.receipts:
            event, digest = receipt["event"], receipt["digest"]
            called = f"the receipt of event {event['id']} ({where})"
            if sha256(canonical(event)).hexdigest() != digest:
                found.append(f"{called} was altered: it has another digest")
            if held.setdefault(event["id"], digest) != digest:
                found.append(f"{called} says other than one before it")
            leaf = sha256(b"\0" + canonical({"answer": receipt["answer"], "digest": digest})).digest()
            path = [_digest(beside) for beside in receipt["path"]]
            root = root_of_path(leaf, receipt["index"], receipt["signed"]["size"], path)
            if root is None or root.hex() != receipt["signed"]["root"]:
                found.append(f"{called} does not lead to the root that was signed")
            self._is_signed(receipt["signed"], called)
            filed = self._events.get(event["id"])
            if filed is not None and filed[2] != digest:
                found.append(f"{called} says other than number {filed[1]} of {filed[0]}")
            elif filed is None and self.evidence.days:
                found.append(f"{called} is in no file of these days")
        self._name("", found)
        if self.evidence.receipts:
            without = sum(event not in held for event in self._events)
            self.summary.append(f"{len(held)} receipts of answers; {without} events of the files have none here")

    def _check_invoice(self, invoice: dict[str, Any]) -> None:
        number = invoice.get("number") or "the draft"
        roots = invoice.get("receipts")
        if not roots:
            self.findings.append(f"{number} has no roots of days: it was made without receipts")
            return
        days = {head["day"]: head for head in (day.head for day in self.evidence.days.values())}
        for root in roots:
            head = days.pop(root["day"], None)
            if head is None:
                self.findings.append(f"{root['day']} is on {number} and not in the files")
                continue
            said = {"day": root["day"], "events": head["events"], "cost": head["cost_pico"], "root": head["root"]}
            if said != root:
                self.findings.append(
                    f"{root['day']}: {number} has another root, number of events or cost than its head"
                )
            if head["tenant"] != invoice["tenant_id"] or head["period"] != invoice["period"]:
                self.findings.append(f"{root['day']}: its head is not of {number}'s tenant and period")
        self._name("", (f"{day} is in the files and not on {number}" for day in sorted(days)))
        self._check_lines(invoice, number)

    def _check_lines(self, invoice: dict[str, Any], number: str) -> None:
        """Each line of usage is the sum of events, at the price that they name, and every event is in a line."""
        units = dict(self._units)
        by_model: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
        for key in units:
            by_model[key[1:]].append(key)
        others = Counter(line["kind"] for line in invoice["lines"] if line["kind"] != "usage")
        lines = [line for line in invoice["lines"] if line["kind"] == "usage"]
        for n, line in enumerate(invoice["lines"], 1):
            if line["kind"] != "usage":
                continue
            names = ("model", "meter", "lane", "context_from", "price_version", "corrects")
            rest = tuple(line[name] for name in names)
            keys = [(line["project_id"], *rest)] if line["project_id"] else by_model.get(rest, [])
            total = sum(units.pop(key, 0) for key in keys)
            if total != int(line["units"]):
                self.findings.append(f"{number}, line {n}: {line['units']} units, the events have {total}")
            prices = self.evidence.prices.get(line["price_version"], {"rows": {}})
            micro = _price(prices["rows"], line["meter"], line["lane"], line["context_from"])
            if micro != line["price"] or int(line["units"]) * line["price"] != int(line["exact"]):
                self.findings.append(f"{number}, line {n}: it is not its units at the price that events have")
        left = (
            f"{total} units of {key[2]} of {key[1]} are on no line of {number}" for key, total in units.items() if total
        )
        self._name("", left)
        text = f"{len(lines)} lines of usage are compared with {len(self._events)} events"
        rest_of = ", ".join(f"{count} of {kind}" for kind, count in sorted(others.items()))
        self.summary.append(text + (f"; lines that no receipt tells of: {rest_of}" if others else ""))


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except (ValueError, TypeError):
        return b""


def _integer(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


def _price(rows: dict[tuple[str, str, int], int], meter: str, lane: str, tier: int) -> int | None:
    """The price of a meter: of the lane's own rows, or of those of every lane if it has none."""
    own = any(of_lane == lane for _, of_lane, _ in rows)
    return rows.get((meter, lane if own else "*", tier))


def verify(invoice: bytes | None, files: Iterable[tuple[str, Iterable[bytes]]], keys: bytes | None) -> Verification:
    """Verify an invoice's JSON against files of JSON lines, with a JWK set. Raises Unreadable."""
    evidence = Evidence()
    for name, lines in files:
        evidence.read(name, lines)
    try:
        document = None if invoice is None else json.loads(invoice)
        verification = Verification(document, evidence, None if keys is None else read_keys(keys))
        verification.run()
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError, RecursionError) as error:
        raise Unreadable(f"the invoice or the receipts lack something ({type(error).__name__}: {error})") from error
    return verification


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="verifier.py", description=__doc__.splitlines()[0])
    parser.add_argument("invoice", help="the invoice's JSON; - for none: then the files alone are checked")
    parser.add_argument("receipts", nargs="+", help="files of JSON lines: days, and receipts that came with answers")
    parser.add_argument("--keys", help="the JWK set of /.well-known/turnpike-receipt-keys.json, kept from earlier")
    given = parser.parse_args(arguments)
    try:
        return report(given.invoice, given.receipts, given.keys)
    except (Unreadable, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def report(invoice: str, receipts: list[str], keys: str | None) -> int:
    """Verify files and print what was found; 0 if all holds, else 1. Raises Unreadable, OSError."""
    read = _bytes_of
    verification = verify(
        None if invoice == "-" else read(invoice),
        ((name, read(name).splitlines()) for name in receipts),
        None if keys is None else read(keys),
    )
    lines = [*verification.findings, *(f"({line})" for line in verification.summary)]
    lines.append(f"{len(verification.findings)} things do not hold" if verification.findings else "all of it holds")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 1 if verification.findings else 0


def _bytes_of(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


if __name__ == "__main__":
    sys.exit(main())
