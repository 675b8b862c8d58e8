"""A site of many results: a table a workload, a page a run, an audit on every row."""

NEEDS = ("published", "report")
