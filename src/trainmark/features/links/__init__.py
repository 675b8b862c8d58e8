"""Measures the links between devices and nodes."""

NEEDS = ("hosts",)
