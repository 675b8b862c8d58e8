"""WaveNet on LJSpeech: `facts` without torch, `workload` for training."""
