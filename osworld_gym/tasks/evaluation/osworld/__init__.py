"""OSWorld's metrics and getters, repeated here: the fast path that needs neither OSWorld's checkout nor the network.

They agree with OSWorld's own, which run in the sidecar: a test runs both on the same cases. Five of these metrics and
three of these getters serve the bundled suites too; the others serve OSWorld's tasks only.
"""
