"""The logical half: a traced program, its gradients, precision, microbatches and pipeline."""
