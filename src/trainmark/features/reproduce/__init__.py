"""Runs a plan again and compares the results."""
