"""A deterministic simulation: the product's own code in one process, under a seed that picks order, delays and faults.

`python -m simulation --help` says how to run it. `world` puts gateways, replicas, clients and faults together; `loop`,
`nodes`, `disk`, `network`, `database` and `process_seams` stand in for the machine; `checkers` says what must hold.
"""
