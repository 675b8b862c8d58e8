"""Reports of runs: one self-contained HTML page with tables, charts, audio and images, or other formats."""
