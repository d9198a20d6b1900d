"""Scoring: encodings in; the score matrix, or the scores of given pairs, out."""
