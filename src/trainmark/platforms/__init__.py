"""Where it runs: one Platform class and one TOML file a vendor."""
