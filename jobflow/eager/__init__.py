"""Running ops at once: tensors, the tape of gradients, and changes of layout among ranks that all run the same program."""
