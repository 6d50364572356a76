"""The public names of the package; importing it alone does not load torch."""

import subprocess
import sys

import pytest
from torchrl.collectors import Collector
from torchrl.data import ReplayBuffer
from torchrl.envs.transforms import Transform
from torchrl.objectives import LossModule
from torchrl.trainers import Trainer

import bepa_torchrl
from bepa_torchrl.functional import group_advantage


def test_names_and_what_they_extend():
    parents = {
        "TaskTraceCache": ReplayBuffer,
        "TraceReplacement": Transform,
        "GroupRolloutCollector": Collector,
        "GroupRows": Transform,
        "BEPALoss": LossModule,
        "BEPATrainer": Trainer,
    }
    assert sorted(parents) == bepa_torchrl.__all__
    for name, parent in parents.items():
        assert issubclass(getattr(bepa_torchrl, name), parent)
    assert callable(group_advantage)


def test_an_unknown_name_lists_the_known_names():
    with pytest.raises(AttributeError, match="BEPALoss, BEPATrainer"):
        bepa_torchrl.BEPOLoss  # noqa: B018


def test_importing_the_package_alone_is_fast():
    program = "import bepa_torchrl, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
