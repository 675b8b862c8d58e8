"""What more devices bring, of runs and of published rows."""
