"""Counts FLOPs, bytes and launches of a step without running it, and bounds its time on cards."""
