"""The commands of ``osworld-gym``, one file each."""
