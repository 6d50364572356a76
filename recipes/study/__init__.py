"""The comparison of methods on the simulated desktop: runs, result files, statistics, page. See ``__main__``."""
