"""Views of records: terminal, HTML, CSV, JSON, JUnit, OpenMetrics, Markdown; and the copy that is safe to share."""

WITH_ROWS = ("html", "markdown", "csv", "json")
"""Formats that show published rows among the runs; the others are about runs alone."""
FORMATS = (*WITH_ROWS, "junit", "openmetrics")
NEWEST = 10
"""Runs a report shows where none is named."""
TRENDED = 50
"""Runs that a trend follows where nobody says how many."""
