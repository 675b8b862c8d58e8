"""A static site of results: one table per workload, one page per run, every row audited."""

NEEDS = ("published", "report")
