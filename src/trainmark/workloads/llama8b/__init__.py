"""Llama 3.1 of 8 B parameters on C4: `facts` without torch, `workload` for training."""
