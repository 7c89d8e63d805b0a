"""From what an engine counted to usage that is durable."""
