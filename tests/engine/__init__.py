"""Tests of one replica."""
