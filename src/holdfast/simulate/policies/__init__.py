"""Schedulers to replay a trace under: ours, and those it is held against. Each says what it knew."""
