"""Which screenshots of an episode a prompt contains. Past responses are always complete.

- ``all``: every screenshot. Each prompt extends the one before, so an episode is trained in one pass over its last row.
- ``evict_block``: at most 2k - 1 screenshots; at 2k the oldest k are dropped. Prompts extend each other for k steps.
- ``last_k``: the newest k, as OSWorld's UI-TARS agent shows them. From step k on no prompt extends the one before.
"""

from __future__ import annotations

HISTORIES = ("all", "evict_block", "last_k")


def check_history(history: str, images: int | None, *, preset: str | None = None) -> None:
    """Checks the two settings of a history.

    Args:
        history: one of :data:`HISTORIES`.
        images: k, the number of screenshots with ``evict_block`` and ``last_k``; None with ``all``.
        preset: the preset of the prompt that the settings are for; None: any. ``compact`` shows the current screenshot
            whatever they are, so it accepts ``last_k`` and 1 only.

    Raises:
        ValueError: an unknown history, or a number of images or a preset that does not go with it.
    """
    if history not in HISTORIES:
        raise ValueError(f"history must be one of {', '.join(HISTORIES)}; got {history!r}")
    if preset == "compact" and (history, images) != ("last_k", 1):
        raise ValueError(
            f"preset=compact shows the current screenshot only, expected history=last_k and history_images=1, got "
            f"{history} and {images}; set them so, or choose another preset"
        )
    if history == "all":
        if images is not None:
            raise ValueError(
                f"history=all shows every screenshot and has no history_images, got {images}; "
                "use history=last_k or history=evict_block to show fewer, or leave history_images out"
            )
    elif images is None or images < 1:
        raise ValueError(
            f"history={history} requires history_images of at least 1 (the current screenshot), got {images}"
        )


def first_image(screenshots: int, history: str, images: int | None) -> int:
    """The index of the oldest screenshot in the prompt.

    Args:
        screenshots: number of screenshots so far, the current one included.
        history: one of :data:`HISTORIES`.
        images: k; None with ``all``.

    Raises:
        ValueError: see :func:`check_history`.
    """
    check_history(history, images)
    if images is None:
        return 0
    if history == "last_k":
        return max(0, screenshots - images)
    return images * max(0, screenshots // images - 1)
