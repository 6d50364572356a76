"""The policy's thoughts in free words: eight positions that vary, a clause that says what is seen, then the decision.

The expert's sentences (:mod:`~osworld_gym.tasks.oracles.sim.expert_prose`) are prose that the policy does not prefer;
these are the policy's own. A thought has one of two styles, which its first word tells:

- *free*: ``okay maybe I see clock zone thereafter I want quite swiftly namely tab alarm forthwith there``. A policy
  that writes so finds a quarter of its own tokens improbable, as a language model does.
- *terse*: ``just tab alarm``. It does not say what is seen.

The decision (``tab alarm``) always follows the same word, so that no free word stands between reading and deciding.
"""

from __future__ import annotations

import random

from osworld_gym.desktops.sim.desktop import SimDesktop

TERSE_WORD = "just"  #: the first word of a terse thought; no free thought starts with it
#: the words around what is seen and around the decision
SUBJECT, SEES, DECISION_WORD = "I", "see", "namely"
NOTHING = "nothing"  #: what is seen without a window
_OPENER = ("okay", "alright", "fine", "hmm", "well", "aha", "anyway", "honestly", "frankly", "basically", "listen",
           "alas")  # fmt: skip
_HEDGE = ("maybe", "perhaps", "possibly", "probably", "presumably", "seemingly", "supposedly", "likely", "conceivably",
          "arguably", "ideally", "hopefully")  # fmt: skip
_LINK = ("thereafter", "afterwards", "whereupon", "accordingly", "consequently", "besides", "moreover", "furthermore",
         "instead", "otherwise", "nevertheless", "nonetheless")  # fmt: skip
_WISH = ("want", "wish", "hope", "intend", "aspire", "prefer", "decide", "expect", "like", "desire", "yearn", "love")
_DEGREE = ("quite", "rather", "fairly", "pretty", "truly", "deeply", "greatly", "highly", "totally", "utterly",
           "strongly", "dearly")  # fmt: skip
_WAY = ("swiftly", "briskly", "smoothly", "eagerly", "deftly", "nimbly", "lightly", "boldly", "cleanly", "happily",
        "cleverly", "keenly")  # fmt: skip
_PACE = ("forthwith", "instantly", "straightaway", "immediately", "outright", "soon", "shortly", "anon", "pronto",
         "posthaste", "momentarily", "speedily")  # fmt: skip
_WHERE = ("there", "forward", "beyond", "onward", "ahead", "thither", "yonder", "along", "nearby", "away", "around",
          "upward")  # fmt: skip
#: the positions that vary, in order of the text; the first word of each is drawn with probability ``FAVOURITE``
FREE = (_OPENER, _HEDGE, _LINK, _WISH, _DEGREE, _WAY, _PACE, _WHERE)
FAVOURITE = 0.15


def weights(words: tuple[str, ...]) -> tuple[float, ...]:
    """The probability of each word of a position: ``FAVOURITE`` for the first, the rest in equal parts."""
    return (FAVOURITE, *((1 - FAVOURITE) / (len(words) - 1),) * (len(words) - 1))


def terse_thought(decision: str) -> str:
    """``just click mute``."""
    return f"{TERSE_WORD} {decision}"


def free_thought(decision: str, seen: str, rng: random.Random) -> str:
    """The decision in free words.

    Args:
        decision: the native oracle's thought, such as ``click mute``.
        seen: from :func:`seen_on`.
        rng: draws the words.
    """
    opener, hedge, link, wish, degree, way, pace, where = (rng.choices(words, weights(words))[0] for words in FREE)
    return (
        f"{opener} {hedge} {SUBJECT} {SEES} {seen} {link} {SUBJECT} {wish} {degree} {way} "
        f"{DECISION_WORD} {decision} {pace} {where}"
    )


def seen_on(desktop: SimDesktop) -> str:
    """What covers the screen, in its own labels: pop-up, dialog, menu, launcher, or application and page."""
    state = desktop.inner
    if state.popup is not None:
        return state.popup.title
    if state.dialog is not None:
        return f"{state.dialog.kind} {state.dialog.file}"
    if state.menu is not None:
        return f"menu {state.menu.file}"
    if state.launcher is not None:
        return "start"
    if state.app is None:
        return NOTHING
    return f"{state.app} {state.tab}" if state.tab else state.app


def decision_of(thought: str) -> str:
    """The decision in a thought of either style; another thought as it is."""
    words = thought.split()
    if words[:1] == [TERSE_WORD]:
        return " ".join(words[1:])
    if DECISION_WORD in words:
        return " ".join(words[words.index(DECISION_WORD) + 1 : -2])
    return thought


def is_terse(thought: str) -> bool:
    """Whether a thought is in the terse style."""
    return thought.split()[:1] == [TERSE_WORD]
