"""Checks a machine, its devices, links and site, and suggests remedies."""

NEEDS = ("links",)
