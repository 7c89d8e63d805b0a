"""The step loop of one replica, free of sockets, threads and files."""
