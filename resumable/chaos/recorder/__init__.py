"""Runs inside an observed process: records its actions and injects faults; also reads the ledgers."""
