"""What happens before a replica is ready: assembly, self-test, calibration, warm-up."""
