"""Tests of the tiers beyond device memory."""
