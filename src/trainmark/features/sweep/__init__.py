"""Runs one training at several topologies."""
