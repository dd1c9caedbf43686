"""Checkpoints: state that is durable and committed by a manifest. Read the README beside this file first; nothing here imports torch until it is used."""
