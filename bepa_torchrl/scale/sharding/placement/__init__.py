"""Trainer ranks as actors of a Ray cluster, in one placement group; the process that starts them is none of them."""
