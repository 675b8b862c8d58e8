"""Llama 3.1 of 8 B parameters on C4: `facts.toml` for all, `workload` for training."""
