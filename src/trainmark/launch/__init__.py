"""Runs: planning, preflight, worker processes, supervision, sampler; other hosts by ssh, Slurm and Kubernetes."""
