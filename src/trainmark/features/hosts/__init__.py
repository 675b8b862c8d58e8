"""Runs a plan on hosts reached by ssh."""
