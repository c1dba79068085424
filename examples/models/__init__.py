"""Models that the examples train."""
