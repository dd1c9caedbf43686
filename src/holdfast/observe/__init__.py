"""Observation: what can be seen from outside the training. Start with `default.default_probes` and `runner.Runner`."""
