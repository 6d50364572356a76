"""Online-Mind2Web: its tasks (:mod:`.tasks`), and trajectories of any agent (:mod:`.trajectories`).

They are judged by a language model (:mod:`.judge`); how far it can be trusted is measured on human labels
(:mod:`.agreement`).
"""
