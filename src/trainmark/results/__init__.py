"""Afterwards: the store of records and the views of it. Works on a laptop without torch."""
