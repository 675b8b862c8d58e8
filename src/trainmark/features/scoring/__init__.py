"""Scores speech: a predicted opinion score and word errors."""
