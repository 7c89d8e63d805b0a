"""The replica's process: its socket, the engine's thread, and the journal between them."""
