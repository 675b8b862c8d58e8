"""One decoder for language, which its recipe gives a shape: what the workloads named after such networks share."""
