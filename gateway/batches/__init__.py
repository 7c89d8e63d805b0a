"""Runs batches: reads their input, runs each line as a request of its own, and makes files of the results."""
