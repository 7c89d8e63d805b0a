"""What the model that calls tools is trained on, and how it is measured. `scripts/train_tool_model.py` runs it."""
