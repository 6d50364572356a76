"""Without Ray its tests are not collected (`make test-ray` installs it, and fails if there is none to run)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

collect_ignore = [] if find_spec("ray") else [path.name for path in Path(__file__).parent.glob("test_ray_*.py")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of this process alone."""
    from ray_runs import one_node

    with one_node():
        yield


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """A Ray cluster whose head has no desktops and to which nodes are added."""
    from ray_runs import several_nodes

    with several_nodes() as cluster:
        yield cluster
