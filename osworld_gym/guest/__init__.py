"""The guest: the server inside a desktop, which serves screenshots and turns actions into input events.

It imports the standard library, Xlib and Pillow only, and nothing of the host side, so that the folder can be copied
into a container or a virtual machine and started with ``python <folder>`` or ``python -m osworld_gym.guest``. It starts
two helper programs when they are needed: ``preload_server.py``, for commands that use pyautogui, and ``atspi_tree.py``,
which runs with the system's Python. The endpoints are documented in docs/guest.md.
"""
