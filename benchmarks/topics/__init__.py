"""What topics and their patterns cost: waiting readers, notifiers, publishers, epochs, and reading at full speed."""
