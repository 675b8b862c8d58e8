"""Published results: reads, audits and writes the result pages of other benchmarks."""
