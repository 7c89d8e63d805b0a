"""Tests of one replica."""

import os

# As `engine` does, and for the same reason: tests may load torch before it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
