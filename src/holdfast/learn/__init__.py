"""Learn: outcomes into reputation of nodes, remedies that work, limits, and answers that were corrected. Pure."""
