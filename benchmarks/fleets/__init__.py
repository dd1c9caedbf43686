"""Fleets that are played, to measure what is learned from them."""
