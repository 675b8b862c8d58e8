"""What tests share: builders of records, clusters of namespaces, stand-ins, runs in the background."""
