"""How it is run: check, launch, worker, loop, clock, gather - the only room with processes and clocks."""
