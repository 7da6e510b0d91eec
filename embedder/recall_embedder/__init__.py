"""Cuts texts into passages and turns them into vectors."""
