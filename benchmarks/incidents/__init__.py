"""Incidents with a known cause: caused for real (cause.py), written from what libraries print (written.py, messages/), and over many ranks (cascades.py)."""
