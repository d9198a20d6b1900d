"""What is made of an experiment's results: tables, figures, examples, and one page with all of it.

    rows      what each row came to, with every seed, and the ranks behind it
    tables    the paper's layout, for terminals, Markdown, CSV and the page
    figures   curves, histograms and distributions, in print and for the colour-blind
    scores    of the pair classes on the same training batches
    examples  queries that the settings answer differently; negatives online and offline
    page      all of it in one folder

Everything is made of what is there: of an unfinished experiment, the part that is done.
"""
