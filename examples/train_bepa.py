"""Trains a policy. By default BEPA and GRPO on the simulated desktop with the tiny policy, in a few minutes.

python examples/train_bepa.py                     # the default
python examples/train_bepa.py algo=luffy          # another method, compared with GRPO
python examples/train_bepa.py algo=grpo 'compare=[]' train.iterations=10
python examples/train_bepa.py env=local           # the same program on a real X desktop
python examples/train_bepa.py experiment=local    # a policy for real applications, on eight of them (make train-local)
"""

import sys

from bepa_torchrl.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
