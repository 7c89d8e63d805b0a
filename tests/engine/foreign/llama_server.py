"""llama.cpp's own server, of the package `xllamacpp`: `python -m tests.engine.foreign.llama_server GGUF PORT`."""

from __future__ import annotations

import sys
import time


def main(gguf: str, port: str) -> None:
    """Serve until killed: four slots of 8,192 tokens, one thread."""
    from xllamacpp import CommonParams, Server

    options = CommonParams()
    options.model.path = gguf
    options.hostnames = ["127.0.0.1"]
    options.port, options.n_parallel, options.n_ctx = int(port), 4, 4 * 8192
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.warmup, options.kv_unified, options.endpoint_slots = False, False, True
    _server = Server(options)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
