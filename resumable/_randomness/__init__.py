"""Random numbers as functions of a key, and the global generators that augmentation code draws from."""
