"""One rank: worker, set-up, loop, clock, stepper, monitor; the only room that trains."""
