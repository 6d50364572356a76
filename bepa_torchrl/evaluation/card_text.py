"""The card as a page for people: Markdown, and the same as HTML without scripts or requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from bepa_torchrl.evaluation.card import FOLDER_TASKS

Table = tuple[str, Sequence[Sequence[str]]]  #: title, and rows of which the first has the heads
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{padding:.2rem .8rem;border-bottom:1px solid #8886;"
    "text-align:left}h1{font-size:1.5rem}h2{font-size:1.1rem;margin:0}"
)


def markdown(card: Mapping[str, Any]) -> str:
    """The card in Markdown."""
    return markdown_page(_title(card), _sentence(card), tables(card))


def html(card: Mapping[str, Any]) -> str:
    """The card as one HTML page."""
    return html_page(_title(card), _sentence(card), tables(card))


def markdown_page(name: str, summary: str, parts: Iterable[Table]) -> str:
    """A title, a paragraph and tables in Markdown."""
    lines = [f"# {name}", "", summary, ""]
    for title, rows in parts:
        head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
        lines += [f"## {title}", "", _row(head), _row(["---"] * len(head)), *map(_row, body), ""]
    return "\n".join(lines)


def html_page(name: str, summary: str, parts: Iterable[Table]) -> str:
    """The same as one HTML page without scripts or requests."""
    body_of = [f"<h1>{escape(name)}</h1>", f"<p>{escape(summary)}</p>"]
    for title, (head, *body) in parts:
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
        body_of.append(f"<h2>{escape(title)}</h2><table><tr>{cells}</tr>{rows}</table>")
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(name)}</title>'
    return f"{head}<style>{_STYLE}</style><body>{''.join(body_of)}</body></html>\n"


def tables(card: Mapping[str, Any]) -> Iterator[Table]:
    """The card's tables."""
    sets = {name: value for name, value in card["denominators"].items() if isinstance(value, Mapping)}
    names = {
        "listed": f"all {_listed(card)}; no result counts as a failure",
        "limited": f"{_first(card)}; no result counts as a failure",
        "without_drive": "the same without the eight tasks of Google Drive",
        "ran": "tasks that have a result",
    }
    rows = [(names[name], str(value["tasks"]), percent(value["score"])) for name, value in sets.items()]
    yield "Denominators", [("over", "tasks", "score"), *rows]
    heads = ("", "tasks", "score", "95 % interval", "without a result")
    groups = [("tasks that can be done", card["feasible"]), ("infeasible tasks", card["infeasible"])]
    groups += [*card["domains"].items(), *card["categories"].items()]
    shown = [(name, value) for name, value in groups if value["tasks"] or "tasks_without_result" in value]
    yield "Parts", [heads, *(_group(name, value) for name, value in shown)]
    passes = [_pass(each) for each in card["passes"]]
    yield "Passes", [("pass", "successes", "failures", "no result", "score"), *passes]
    if len(card["pass_at_k"]) > 1:
        at_k = [
            (k, str(value["tasks"]), percent(value["score"]), percent(card["all_pass_at_k"][k]["score"]))
            for k, value in card["pass_at_k"].items()
        ]
        yield "pass@k", [("k", "tasks", "at least one of k succeeds", "all k succeed"), *at_k]
    yield from _counts("How episodes ended", "stop reason", card["stops"])
    yield from _counts("Episodes without a result", "reason", card["no_result"])
    yield from _agreement(card.get("agreement"))
    yield "Conditions", [("", ""), *((name, value) for name, value in _conditions(card))]


def _title(card: Mapping[str, Any]) -> str:
    suite = card.get("suite", "suite")
    return f"{card.get('policy', 'policy')} on {f'{_first(card)} of {suite}' if card.get('limited') else suite}"


def _listed(card: Mapping[str, Any]) -> str:
    """Which tasks are all of those that are listed."""
    return FOLDER_TASKS if card.get("suite") == FOLDER_TASKS else "tasks of the edition"


def _first(card: Mapping[str, Any]) -> str:
    """Which tasks a limited evaluation is of; empty if it has no limit."""
    limited = card.get("limited")
    return "" if limited is None else f"the first {limited['tasks']} of {limited['of']} tasks"


def _sentence(card: Mapping[str, Any]) -> str:
    """The score with its interval and denominator, and what writing FAIL everywhere would earn."""
    if card["score"] is None:
        return "No task has a result."
    low, high = card["interval"]
    text = f"{percent(card['score'])} of {card['tasks']} tasks (95 % interval {percent(low)} to {percent(high)})."
    missing = card["denominators"]["tasks_without_result"]
    text += f" {missing} tasks have no result." if missing else ""
    share = card["infeasible"]["share"]
    if share:
        text += f" A policy that ends every task as infeasible would get {percent(share)}."
    return text


def percent(share: float | None) -> str:
    """A share as per cent with one digit; a dash for None."""
    return "–" if share is None else f"{100 * share:.1f} %"


def _pass(value: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (str(value[kind]) for kind in ("success", "failure", "no_result"))
    return str(value["pass"] + 1), *counts, percent(value["score"])


def _group(name: str, value: Mapping[str, Any]) -> tuple[str, ...]:
    interval = "–" if value["interval"] is None else " to ".join(map(percent, value["interval"]))
    missing = str(value.get("tasks_without_result", ""))
    return name, str(value["tasks"]), percent(value["score"]), interval, missing


def _counts(title: str, head: str, counts: Mapping[str, int]) -> Iterator[Table]:
    if counts:
        yield title, [(head, "episodes"), *((name, str(count)) for name, count in counts.items())]


def _agreement(agreement: Mapping[str, Any] | None) -> Iterator[Table]:
    """The table that holds a judge against human labels; none without labels."""
    if agreement is None:
        return
    interval = "" if agreement["interval"] is None else f" ({' to '.join(map(percent, agreement['interval']))})"
    rows = [
        ("tasks with a verdict and a label", str(agreement["tasks"])),
        ("agreement", percent(agreement["agreement"])),
        ("false positives, of the tasks that people call failures", percent(agreement["false_positive_rate"])),
        ("false negatives, of those that they call successes", percent(agreement["false_negative_rate"])),
        ("success rate of these tasks by the judge", percent(agreement["judge_rate"])),
        ("the same by people", percent(agreement["human_rate"])),
        ("corrected success rate of all judged tasks (95 % interval)", percent(agreement["corrected"]) + interval),
    ]
    yield "The judge against people", [("", ""), *rows]


def _conditions(card: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """How the evaluation was made: the facts, and the averages of the episodes."""
    derived = {
        "score", "interval", "tasks", "mean_score", "denominators", "passes", "pass_at_k", "all_pass_at_k", "domains",
        "categories", "feasible", "infeasible", "stops", "no_result", "schema", "edition", "agreement",
        "efficiency_quality", "limited",
    }  # fmt: skip
    area = card.get("efficiency_quality")
    if area is not None:
        about = f"tasks in the order {area['order']}, {area['max_steps']} steps at most"
        yield "efficiency-quality area", f"{area['area']:.3f} ({about})"
    for name, value in card.items():
        if name not in derived and value is not None and (text := plain(value)):
            yield name.replace("_", " "), text


def plain(value: Any) -> str:
    """A fact as text; empty for an empty list or mapping."""
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
