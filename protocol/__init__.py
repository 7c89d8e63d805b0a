"""The messages between gateway and replica. Both sides import this room; it imports none of ours."""
