"""The door: one small module a command; torch is imported only inside the commands that need it."""
