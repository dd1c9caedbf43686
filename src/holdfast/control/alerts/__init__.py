"""Alerts out: incidents leave the job as notifications. `alerting.Alerts` is what control holds; README.md draws the flow."""
