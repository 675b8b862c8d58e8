"""The decoder-only language model that several workloads share; its shape comes from the recipe."""
