"""ResNet-50 on ImageNet-1k: `facts` without torch, `workload` for training."""
