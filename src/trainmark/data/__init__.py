"""What a workload eats: readers, makers of the embedded sets, safe unpacking, verification."""
