"""Measures how fast, how accurate, how hungry and how steady a machine trains real models."""

__version__ = "0.1.0"
