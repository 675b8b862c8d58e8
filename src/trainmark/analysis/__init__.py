"""Analysis of records: comparison, scaling, audit. Needs no torch."""
