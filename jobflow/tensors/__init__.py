"""Running operations immediately: tensors, gradients, and changes of layout among ranks that all run the same program."""
