"""MLPerf Training: result logs and folders read, audited and written; the official verdict is mlcommons' own."""
