"""A demonstration to run yourself: real training processes, killed with SIGKILL at random times and resumed.

    python -m examples.demo

For each kind of source, a training program runs twice: once undisturbed, and once with several kills. The program is a
hand-written loop (`training.py`) or a Lightning Trainer (`lightning_training.py`). Each process records what it trained
on in a ledger; `verdict.py` compares the two runs batch by batch, and the final weights bit for bit. Fork server and
process groups come from `resumable.chaos`; ledger and verdict are independent of it.

The modules import each other relatively, because other example scripts use some of them as `demo`.
"""
