"""The policy of real desktops: the class of the tiny one, for screens of 640 x 368, cloned from recordings."""
