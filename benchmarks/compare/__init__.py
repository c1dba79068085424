"""Loaders of several libraries after an interruption: `make compare`.

Every library has a script of the same small job in `peers`, written as its documentation says. The job runs in
separate processes, which are stopped and continued in each of the `situations`; `judge` compares their batches with an
uninterrupted run. No cell of a table is written by hand.
"""
