"""Topics of epochs. A subscriber sees an epoch as a whole or not at all."""
