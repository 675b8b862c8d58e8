"""Prints a run as a Slurm script or a Kubernetes job."""
