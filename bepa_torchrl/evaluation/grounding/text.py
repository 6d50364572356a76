"""The card of a grounding suite as a page for people: Markdown, and the same as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bepa_torchrl.evaluation.card_text import Table, html_page, markdown_page, percent


def markdown(card: Mapping[str, Any]) -> str:
    """The card in Markdown."""
    return markdown_page(_title(card), _summary(card), _tables(card))


def html(card: Mapping[str, Any]) -> str:
    """The card as one HTML page."""
    return html_page(_title(card), _summary(card), _tables(card))


def _other_items(card: Mapping[str, Any]) -> bool:
    """Whether the files have another number of items than the published edition."""
    sizes = card["denominators"]
    return sizes["published_items"] not in (None, sizes["items"])


def _title(card: Mapping[str, Any]) -> str:
    return f"{card.get('policy')} on {'other items in the format of ' if _other_items(card) else ''}{card.get('suite')}"


def _summary(card: Mapping[str, Any]) -> str:
    if card["score"] is None:
        return "No item has a result."
    sizes, (low, high) = card["denominators"], map(percent, card["interval"])
    text = f"{percent(card['score'])} of {sizes['with_result']} items (95 % interval {low} to {high}); "
    text += f"{sizes['no_result']} without a result. "
    text += f"{card['format_errors']} responses could not be read, and count as wrong."
    if card.get("outside_image"):
        text += f" {card['outside_image']} points are outside of their image: is the scale of the answers right?"
    if _other_items(card):
        text += f" The published edition has {sizes['published_items']} items, these files {sizes['items']}."
    return text


def _tables(card: Mapping[str, Any]) -> Iterator[Table]:
    """The suite's other scores, each division, and the conditions."""
    others = [
        (name.replace("_", " "), percent(card[name]), "")
        for name in ("weighted", "weighted_normalised", "basic_and_advanced")
        if card.get(name) is not None
    ]
    if "without_refusals" in card:
        rest = card["without_refusals"]
        others.append(("without the items whose answer is a refusal", percent(rest["score"]), str(rest["of"])))
    if others:
        yield "Other scores", [("score", "value", "items"), *others]
    for division, parts in card["groups"].items():
        rows = [(part, str(rate["of"]), percent(rate["score"])) for part, rate in parts.items()]
        yield division, [(division, "items", "right"), *rows]
    names = ("digest", "action_text", "preset", "scaling", "temperature", "max_new_tokens")
    yield "Conditions", [("", ""), *((name.replace("_", " "), str(card[name])) for name in names if name in card)]
