"""Topics of epochs: a subscriber sees all or nothing of an epoch."""
