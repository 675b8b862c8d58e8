"""The words: frozen data that the other rooms share. Nothing here imports torch or another room."""
