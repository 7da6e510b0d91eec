"""Finds session logs, reads what is new in them, and hands rows to a sink."""
