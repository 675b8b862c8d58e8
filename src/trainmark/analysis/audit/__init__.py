"""A lie detector: holds what a run or a published page says against everything else that is known about it."""
