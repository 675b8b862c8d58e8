"""Devices: one Platform class, and one TOML file per vendor."""
