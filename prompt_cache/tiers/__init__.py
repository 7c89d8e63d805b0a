"""Tiers farther than device memory: sealed records of KV blocks in a folder, which survive a restart."""
