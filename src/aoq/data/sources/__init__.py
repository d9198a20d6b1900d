"""Captions and pictures as people bring them, whatever the format.

`captions` has a reader for each format; `records` joins their entries with the pictures, checks
both, and makes one record an image.
"""
