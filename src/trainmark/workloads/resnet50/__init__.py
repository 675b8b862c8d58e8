"""ResNet-50 on ImageNet-1k: `facts` for everybody, `workload` for those who train."""
