"""The engine itself: from requests to steps of the model to events, free of sockets, threads and files."""
