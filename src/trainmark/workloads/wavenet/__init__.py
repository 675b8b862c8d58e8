"""WaveNet on LJSpeech: `facts` for everybody, `workload` for those who train."""
