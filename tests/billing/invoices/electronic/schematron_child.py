"""The child process of `schematron`: `python -m … RULES FILE…` prints what rules say, as JSON.

RULES is a Schematron compiled to XSLT. The answer has an entry for each file: how many rules were looked at and which
assertions failed.
"""

from __future__ import annotations

import json
import resource
import sys

from lxml import etree
from saxonche import PySaxonProcessor

_SVRL = "{http://purl.oclc.org/dsdl/svrl}"
_DATA = 3 << 30
"""The most memory that it may have."""
_CPU_S = 300


def main(rules: str, files: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA, _DATA))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    with PySaxonProcessor(license=False) as processor:
        compiled = processor.new_xslt30_processor().compile_stylesheet(stylesheet_file=rules)
        reports = [compiled.transform_to_string(source_file=file) for file in files]
    json.dump([_verdict(report) for report in reports], sys.stdout)


def _verdict(report: str) -> dict[str, object]:
    root = etree.fromstring(report.encode())
    failed = [
        {
            "rule": assertion.get("id"),
            "flag": assertion.get("flag") or assertion.get("role"),
            "text": " ".join("".join(assertion.itertext()).split()),
            "location": assertion.get("location"),
        }
        for assertion in root.iter(f"{_SVRL}failed-assert", f"{_SVRL}successful-report")
    ]
    return {"fired": len(root.findall(f"{_SVRL}fired-rule")), "failed": failed}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
