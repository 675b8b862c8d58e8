"""A GPT of 124 M parameters on FineWeb: `facts` for everybody, `workload` for those who train."""
