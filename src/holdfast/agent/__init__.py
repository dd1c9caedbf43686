"""The process on every node: starts workers, watches them, ends them, and tells control what happened."""
