"""Topics of epochs: a source of whole epochs, and a sink whose micro-batches are epochs."""
