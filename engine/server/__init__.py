"""The replica process: its socket, the thread of the engine, and the journal between them."""
