"""Shared by examples: models that they train, and a run that is killed."""
