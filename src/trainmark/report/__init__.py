"""Views of records: terminal, HTML, CSV, JSON, JUnit, Markdown; and the copy that is safe to share."""
