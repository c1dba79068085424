"""The proof to run at home: real training processes, killed with SIGKILL at random moments and resumed.

    python -m resumable.demo

For each kind of source, a training program is run twice in processes of its own: once unharmed, and once killed several
times. The program is a hand-written loop (`training.py`) or a Lightning Trainer (`lightning_training.py`). Each process
writes what it trained on into a ledger; `verdict.py` compares the two runs batch by batch, and bit for bit in the final
weights.
"""
