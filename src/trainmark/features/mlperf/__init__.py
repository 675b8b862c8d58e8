"""MLPerf Training: reads, audits and writes result logs; the official verdict comes from mlcommons' checkers."""
