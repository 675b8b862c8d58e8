"""Whether two results differ, by how much, and how surely."""
