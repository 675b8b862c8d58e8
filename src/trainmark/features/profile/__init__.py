"""Profiles extra steps after training: `run --profile N`."""
