"""Metrics over a set: accuracy, F1, AUC and others, computed from all samples instead of averaged over batches.

requests            tensors that a train or evaluation job returns for metrics
classification      accuracy, top-k accuracy, F1, confusion matrix and perplexity
ranking             area under the ROC curve
regression          mean absolute error, root mean squared error, coefficient of determination
own                 metrics by import path
configured_metrics  all metrics of a configuration
metric_names        names of metrics and classes
totals              means and metrics over a set of batches, and their state in a checkpoint
epochs              means and metrics of the training samples over an epoch
"""
