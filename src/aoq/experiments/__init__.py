"""Experiments: settings side by side, their tables, figures and reports."""
