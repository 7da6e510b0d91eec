"""How good search is: labelled queries, scores, and the run that puts them together."""
