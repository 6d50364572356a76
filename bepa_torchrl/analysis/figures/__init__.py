"""The paper's figures and tables from the records of runs: a table per figure, as CSV, and its drawing."""
