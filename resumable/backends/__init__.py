"""Adapters for one framework each, imported on first use. They never import each other."""
