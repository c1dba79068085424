"""The proof to run at home: real training processes, killed with SIGKILL at random moments and resumed.

    python -m examples.demo

For each kind of source, a training program is run twice in processes of its own: once undisturbed, and killed a few
times. The program is a hand-written loop (`training.py`) or a Lightning Trainer (`lightning_training.py`). Each process
writes what it trained on into a ledger; `verdict.py` compares the two runs batch by batch, and bit for bit in the final
weights. The fork server and the groups of processes are those of `resumable.chaos`; ledger and verdict are an oracle
of its own.

Its modules import each other relatively, as the scripts beside it use some of them, too, as those of `demo`.
"""
