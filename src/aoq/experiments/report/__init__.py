"""What is made of an experiment's results: tables, figures, examples, and one page with all of it.

    rows         what each row came to, with every seed, and the ranks behind it
    behaviour    when a row passes the first of its group; pairs that are first both ways
    claims       what is claimed of the rows, judged by seeds and intervals
    tables       the paper's layout, for terminals, Markdown, CSV and the page
    figures      curves, histograms and distributions, in print and for the colour-blind
    scores       of the pair classes on the same training batches
    examples     queries that the settings answer differently; negatives online and offline
    photographs  the examples in print, with their pictures
    page         all of it in one folder
    experiment   reads what is done of a grid, and gathers what its page tells

Everything is made of what is there: of an unfinished experiment, the part that is done.
"""
