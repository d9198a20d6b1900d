"""Evaluation: ranks of the right answers, and the recalls made of them."""
