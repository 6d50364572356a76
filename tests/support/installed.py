"""Packages as pip leaves them: a module and the metadata with its entry points, in a folder for ``sys.path``."""

from pathlib import Path


def install(site: Path, name: str, entry_points: str, module: str | None = None) -> None:
    """Writes a distribution.

    Args:
        site: the folder.
        name: of the distribution; its module's has ``_`` for ``-``.
        entry_points: content of ``entry_points.txt``.
        module: the module's code; None: it has none.
    """
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    if module is not None:
        (site / f"{name.replace('-', '_')}.py").write_text(module)
