"""Text as tokens: `facts` for everybody, and what makes, prepares, verifies and reads it."""
