"""LJSpeech: reading, a synthetic set of its shape, preparing the archive, verifying."""
