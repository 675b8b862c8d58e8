"""Finds the largest useful batch before a run: recipe fill."""
