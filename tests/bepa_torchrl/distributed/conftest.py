"""Without Ray its tests are not collected (`make test-ray` installs it, and fails if there is none to run)."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("ray") else ["test_ray_cluster.py", "test_ray_nodes.py"]
