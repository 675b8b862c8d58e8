"""Shows what a run would do, and what its step costs, without running it."""
