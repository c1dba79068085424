"""Random numbers as functions of a key, and seeding of the global RNGs that augmentation code uses."""
