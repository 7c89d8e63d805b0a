"""Python imports this at its start, where a test put its folder on the path: the process's clock is wrong from then on.

By `TURNPIKE_TEST_CLOCK` seconds. The monotonic clock stays, as it does when a host's clock was never set.
"""

from __future__ import annotations

import os
import time

_wrong_by = float(os.environ.get("TURNPIKE_TEST_CLOCK", "0"))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _wrong_by
time.time_ns = lambda: _time_ns() + int(_wrong_by * 1e9)
