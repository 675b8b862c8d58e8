"""Cluster environments, one module each: detection of the place of a process, and rendering of a run."""
