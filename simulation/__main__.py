"""`python -m simulation`: see `--help`."""

from __future__ import annotations

import sys

from simulation import process_seams

if __name__ == "__main__":
    process_seams.install()  # before the product is imported: names that are bound at import are bound to these
    from simulation.command import main

    sys.exit(main(sys.argv[1:]))
