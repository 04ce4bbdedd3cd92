"""The figures, one function each: it takes what was run and returns the picture and the plotted data (one row a point:
`panel`, `series`, `x`, and the `median`, `low` and `high` over seeds, or `y`). Saving is `artifact.reproduce.figures`.
"""
