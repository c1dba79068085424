"""What the ranks of a run tell each other, through the key-value store of their process group."""
