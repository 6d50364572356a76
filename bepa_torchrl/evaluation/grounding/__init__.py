"""Grounding and understanding suites: one screenshot, one question, and where the answer must point.

The published files are read unchanged (:mod:`.files`), answers are read in the policy's own scale (:mod:`.answers`),
and scored as the suites' papers do (:mod:`.scores`).
"""
