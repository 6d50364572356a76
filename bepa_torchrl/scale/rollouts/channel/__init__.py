"""One authenticated TCP connection between a training cluster and a rollout cluster; only bytes cross, never a pickle.

The training side listens (:mod:`.server`), the rollout side connects (:mod:`.client`) and sends all requests. What
crosses is described by :mod:`.messages`, :mod:`.results`, :mod:`.plans` and :mod:`.weights`; a change of any of them,
or of :mod:`.handshake`, requires another :data:`.messages.SCHEMA`.
"""
