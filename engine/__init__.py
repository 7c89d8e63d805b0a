"""One replica: a served model on one or more devices. Knows tokens; never tenants, money or HTTP."""

import os

# OpenMP threads that wait for each other in a matrix product spin by default. Where a gateway, say, shares the cores,
# they spin while the thread that they wait for is not running: twenty times slower. OpenMP reads this when torch is
# loaded, so it is set before any module of this package can import torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
