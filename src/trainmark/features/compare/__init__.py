"""Compares two results: whether they differ, by how much, and how certainly."""
