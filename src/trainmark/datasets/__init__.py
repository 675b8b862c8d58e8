"""What a workload is trained on: one folder a data set, beside the machinery they share."""
