"""Scores speech: predicted mean opinion score and word error rate."""
