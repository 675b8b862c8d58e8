"""Writes the weights of a run for other packages, with a configuration and a model card."""

NEEDS = ("sample",)
