"""Scripts that are odd and legal, real hangs, and what else must never be harmed or told wrongly: one module for each section of harmless.py."""
