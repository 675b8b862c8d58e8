"""Writes a decided run down for those who start it elsewhere: a Slurm script, a Kubernetes job, ssh commands."""
