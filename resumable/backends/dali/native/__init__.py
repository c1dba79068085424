"""DALI's own iterators as a Loader, resumed by DALI's checkpoints."""
