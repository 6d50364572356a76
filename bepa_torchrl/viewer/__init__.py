"""``bepa view``: a folder of web pages that shows runs, evaluations, expert traces and self-rollouts."""
