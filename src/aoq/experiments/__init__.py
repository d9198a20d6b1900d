"""Recipes and seeds side by side, and what can be concluded from them.

A definition (TOML) names rows, each a recipe. Its plan is a grid of runs, which jobs train several
at a time; every finished run adds a line to a results file. Rows collect those lines with the ranks
behind them; tables, CSV files, figures and examples show the rows, and a page has all of it. The
demo is such a comparison on the embedded data set. What is about the paper alone is in
`reproduction/`, outside the package.
"""
