"""Shows a running training live, from another terminal."""
