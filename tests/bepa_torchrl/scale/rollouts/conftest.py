"""Without Ray its tests are not collected (`make test-ray` installs it, and fails if there is none to run)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

collect_ignore = [] if find_spec("ray") else [path.name for path in Path(__file__).parent.glob("test_ray_*.py")]
