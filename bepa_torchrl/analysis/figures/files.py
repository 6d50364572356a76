"""Writes tables as CSV and drawings as PNG and SVG."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

Row = Mapping[str, Any]  #: a table's row: column → number, text, or None


def shown(name: str) -> str:
    """A name of the user's in a drawing, in which ``$`` begins no formula."""
    return name.replace("$", r"\$")


def write_table(folder: Path, name: str, rows: Sequence[Row]) -> str:
    """Writes ``<name>.csv`` with the columns of the first row; returns the file's name. None is an empty cell."""
    path = folder / f"{name}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path.name


def write_drawing(folder: Path, name: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> list[str]:
    """Draws ``<name>.png`` and ``<name>.svg``; returns their names.

    Args:
        folder: where.
        name: the name of the files.
        size: (width, height) in inches, at 110 pixels per inch.
        draw: adds the axes to an empty figure.
    """
    figure = plt.figure(figsize=size, layout="constrained")
    try:
        draw(figure)
        names = [f"{name}.png", f"{name}.svg"]
        for each in names:
            figure.savefig(folder / each, dpi=110)
    finally:
        plt.close(figure)
    return names
