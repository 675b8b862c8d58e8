"""A GPT of 124 M parameters on FineWeb: `facts.toml` for all, `workload` for training."""
