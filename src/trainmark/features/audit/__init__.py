"""Holds results against everything else that is known about them."""
