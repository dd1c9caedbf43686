"""Stands in front of the real torch, so that a job starts in a fraction of a second: what an interpreter without torch says."""

raise ModuleNotFoundError("No module named 'torch'", name="torch")
