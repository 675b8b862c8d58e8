"""Segmenter: a class for every pixel, by a Vision Transformer and a decoder of masks."""
