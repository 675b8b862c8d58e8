"""Accepts a cluster: runs one plan on every host separately, and finds slow hosts and links."""

NEEDS = ("hosts", "links", "verify")
