"""DALI pipelines that are fed by our sampler, so that any batch can be asked for."""
