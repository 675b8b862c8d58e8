"""Segmenter: semantic segmentation by a Vision Transformer and a mask transformer."""
