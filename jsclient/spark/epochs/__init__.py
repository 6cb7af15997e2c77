"""Topics of epochs: a source of complete epochs, and a sink whose micro-batches are epochs."""
