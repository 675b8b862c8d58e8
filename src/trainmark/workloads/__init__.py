"""What is trained: one module a workload, with no vendor's name in it."""
