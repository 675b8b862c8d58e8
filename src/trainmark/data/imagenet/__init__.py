"""ImageNet-1k: reading, a synthetic set of its shape, preparing the archives, verifying."""
