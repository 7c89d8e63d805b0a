"""Double entries, and the wallet: the order in which grants and payments pay."""
