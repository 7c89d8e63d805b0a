"""Check that no commit since a base has a subject longer than 72 characters.

`python scripts/check_subjects.py` checks what came after BASE; without the history that takes, as in a tarball or a
shallow clone, it checks nothing and succeeds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = "5c5eb24dad3502fa0d4800bdce9973dcec349df3"
"""The last commit that the rule does not hold for."""
MOST = 72


def subjects_since(base: str, folder: Path) -> list[tuple[str, str]] | None:
    """The short id and subject of each commit after `base`; None where the history does not reach back to it."""
    command = ["git", "-C", str(folder), "log", "--format=%h %s", f"{base}..HEAD"]
    try:
        log = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    lines = (line.partition(" ") for line in log.stdout.splitlines())
    return [(commit, subject) for commit, _, subject in lines]


def main(arguments: Sequence[str] | None = None, folder: Path = ROOT) -> int:
    """Print the subjects that are too long; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=BASE, help="the last commit that is not checked")
    options = parser.parse_args(arguments)
    long = [commit for commit in subjects_since(options.base, folder) or [] if len(commit[1]) > MOST]
    for commit, subject in long:
        print(f"{commit}: {len(subject)} characters, over {MOST}: {subject}", file=sys.stderr)
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
