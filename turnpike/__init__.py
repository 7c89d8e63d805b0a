"""The command line and the processes of Turnpike, which put the rooms together."""
