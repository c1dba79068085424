"""Every kind of fault against every source of the catalogue: `python -m resumable.demo.chaos`."""
