"""Studies on real data; each is a function of `oflax`'s command line."""
