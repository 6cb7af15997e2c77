"""The cost of topics and their patterns: waiting readers, notifiers, publishers, epochs, and fast reading."""
