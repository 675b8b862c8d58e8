"""The first run of a machine: a few networks in three minutes, answered on one screen."""
