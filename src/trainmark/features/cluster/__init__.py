"""Prints a run as a Slurm script, a Kubernetes job or ssh commands."""
