"""Computing a step on the device: the executor, the model's runner, attention plans, CPU threads."""
