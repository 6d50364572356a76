"""Online-Mind2Web: trajectories of any agent (:mod:`.trajectories`), and of episodes played here (:mod:`.played`).

They are judged by a language model (:mod:`.judge`), after an evaluation or as a reward (:mod:`.verifier`); how far it
can be trusted is measured on human labels (:mod:`.agreement`). The tasks are :mod:`osworld_gym.tasks.suites.web`.
"""
