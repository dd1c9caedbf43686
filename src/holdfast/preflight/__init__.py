"""Whether a machine is fit to train on: asked before a job, or of a node under suspicion. See README.md."""
