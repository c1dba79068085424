"""What wrapping costs, measured against the plain loader and against other libraries: `python -m benchmarks`.

A figure is a ratio of two measurements of one run, taken in turns (A B A B ...), so that a busy machine slows both
down. Every contender runs in a process of its own and is told when to read; the others wait in the meantime.

    contenders/   the loaders that are compared, one library per file
    tasks.py      what is measured inside of a contender's process
    remote.py     those processes, seen from here; child.py is their side
    suites/       what is compared with what, one table or two per file
    report.py     tables on the terminal and in Markdown
"""
