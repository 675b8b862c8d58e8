"""The same plan again, then compared."""
