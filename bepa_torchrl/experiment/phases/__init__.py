"""The phases of a run, one after the other: prepare, train each method in its process, write the results."""
