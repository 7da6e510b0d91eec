"""Turns passages into vectors. Empty until search by meaning is built."""
