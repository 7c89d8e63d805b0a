"""Files that clients upload and batches write: sealed blobs under their project's data key, and the rows that say of
them."""
