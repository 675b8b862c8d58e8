"""Trains networks too large for one device: FSDP, HSDP and tensor parallelism."""
