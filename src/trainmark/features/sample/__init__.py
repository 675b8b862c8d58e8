"""Runs a trained network on an input: speech, sound or an image."""
