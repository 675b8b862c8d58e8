"""Verifies the arithmetic of a device: computes the same steps again and compares every bit."""

NEEDS = ("hosts", "reproduce")
