"""A step's work on the device: attention plans, the model's forward pass, sampling."""
