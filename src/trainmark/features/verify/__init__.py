"""Proves the arithmetic of a device: the same steps again, every bit compared."""
