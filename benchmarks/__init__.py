"""The cost of wrapping, compared with the plain loader and with other libraries: `python -m benchmarks`.

A result is a ratio of two measurements from one run, taken alternately (A B A B ...), so a busy machine slows both
down. Every contender runs in a separate process and is told when to read; the others wait in the meantime.

    contenders/   the loaders that are compared, one library per file
    tasks.py      the measurements inside a contender's process
    remote.py     these processes, seen from here; child.py is their side
    suites/       the comparisons, with one or two tables per file
    report.py     tables on the terminal and in Markdown
"""
