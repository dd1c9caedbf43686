"""Putting control and agents where they run. One backend a file."""
