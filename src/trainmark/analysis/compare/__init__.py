"""Tells whether two results differ, by how much, and how surely; or why they cannot be compared."""
