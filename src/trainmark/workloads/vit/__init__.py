"""ViT-B/16 on ImageNet-1k: `facts` without torch, `workload` for training."""
