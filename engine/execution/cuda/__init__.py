"""Steps computed by the kernels of `engine.kernels`, on a GPU: the model, its tables, graphs and self-test."""
