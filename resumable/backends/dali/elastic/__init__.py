"""DALI pipelines that our sampler gives their samples, so that any batch can be asked for."""
