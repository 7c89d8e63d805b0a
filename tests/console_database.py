"""A PostgreSQL server for the console's tests in a browser: it says its URL, and obeys `stop` and `start`.

Each word is a line of stdin, answered by a line when it is done. At the end of stdin the server ends.
"""

from __future__ import annotations

import signal
import sys

from tests.servers import postgres_server


def main() -> None:
    """Run until stdin ends."""
    with postgres_server() as server:
        print(server.url, flush=True)  # noqa: T201  # the console's tests read it  # noqa: T201  # who reads it is a program
        for line in sys.stdin:
            if line.strip() == "stop":
                server.stop(signal.SIGINT)
            else:
                server.start()
            print("done", flush=True)  # noqa: T201  # noqa: T201


if __name__ == "__main__":
    main()
