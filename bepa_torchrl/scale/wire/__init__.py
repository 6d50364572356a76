"""One wire between programs of different machines: HTTP or HTTPS with a token, MessagePack bodies, content by hash.

``bepa rollouts`` and a trainer (:mod:`bepa_torchrl.scale.rollouts.remote`), and a trainer and ``bepa engine``
(:mod:`bepa_torchrl.scale.engine.http`), are its users. A change of what crosses requires another
:data:`.access.SCHEMA`.
"""
