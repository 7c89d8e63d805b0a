"""What the processes of a deployment are built from, and how child processes are kept running."""
