"""The cluster environments, one module each: how a process knows its place in one, and how a run is written for it."""
