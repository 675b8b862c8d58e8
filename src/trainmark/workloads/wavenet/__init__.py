"""WaveNet on LJSpeech: `facts.toml` for all, `workload` for training."""
