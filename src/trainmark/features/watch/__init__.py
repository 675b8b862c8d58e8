"""A running run, live, from another terminal."""
