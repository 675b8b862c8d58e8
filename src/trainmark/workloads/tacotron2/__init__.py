"""Tacotron2 on LJSpeech: `facts` without torch, `workload` for training."""
