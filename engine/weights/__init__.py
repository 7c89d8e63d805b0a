"""From a checkpoint's files to tensors in their final place."""
