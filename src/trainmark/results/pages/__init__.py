"""Reads and writes the pages on which benchmark results are published: tables in Markdown, in two well-known forms."""

from trainmark.results.pages.reading import read

__all__ = ["read"]
