"""Rollouts of a run that is trained elsewhere: queue and weights through the wire (:mod:`bepa_torchrl.scale.wire`).

The training side serves (:mod:`.queue_server`), the rollout side sends all requests (:mod:`.gateway`).
"""
