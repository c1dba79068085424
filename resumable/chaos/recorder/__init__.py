"""Inside a watched process: writes down what it does, and lets happen what the plan says; reads the ledgers."""
