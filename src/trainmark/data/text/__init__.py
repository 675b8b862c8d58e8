"""Text as tokens: reading, a synthetic language, preparing files, verifying."""
