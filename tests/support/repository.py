"""Where the tests find the repository's own files."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
#: an OSWorld checkout next to the repository; tests use it when it is there, in addition to their own data
OSWORLD_BESIDE = ROOT.parent / "shared" / "osworld"
