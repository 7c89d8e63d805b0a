"""The prompt cache: keys and pools of blocks, what to keep, records on disk, what is promised, why a prompt missed."""
