"""A GPT of 124 M parameters on FineWeb: `facts` without torch, `workload` for training."""
