"""DALI's own iterators behind a Loader, resumed by DALI's checkpoints."""
