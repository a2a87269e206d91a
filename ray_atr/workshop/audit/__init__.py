"""Which pairs of a data set are wrong: cross-fitted similarities, a posterior for each pair, and a page to decide on."""
