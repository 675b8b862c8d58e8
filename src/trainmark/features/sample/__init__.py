"""What a trained network makes of an input."""
