"""What a replica does before it is ready: options, assembly, self-test, calibration, warm-up."""
