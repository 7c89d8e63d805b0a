"""What is cached, for whom, where and for how long."""
