"""MLPerf Training: result logs and folders read, audited and written, by tables of the rounds' own rules."""
