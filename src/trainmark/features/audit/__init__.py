"""Audits results for contradictions."""
