"""ViT-B/16 on ImageNet-1k: `facts.toml` for all, `workload` for training."""
