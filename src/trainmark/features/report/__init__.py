"""The report as one HTML file that needs nothing from outside: tables, charts, sound and pictures of runs."""
