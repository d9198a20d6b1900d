"""Captions and pictures from users, in any supported format.

`captions` has a reader for each format; `records` joins their entries with the pictures, checks
both, and makes one record per image.
"""
