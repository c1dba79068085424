"""Shared by the examples: models to train, and a run that is killed."""
