"""Real faults, done to a running job on purpose, put right afterwards, and told of. See README.md."""
