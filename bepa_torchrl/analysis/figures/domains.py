"""Where a method's successes come from, per domain: retained, assimilated, self-evolved. Paper, domain breakdown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.figure import Figure

from bepa_torchrl.analysis.figures.files import Row, shown

PARTS = ("retained", "assimilated", "self_evolved")


def domain_rows(
    label: str, domains: Mapping[str, str], *, base: Collection[str], expert: Collection[str], final: Collection[str]
) -> list[Row]:
    """Method, domain, its number of tasks, how many the base policy, the expert and the method solve, and the parts.

    A success is retained if the base policy solves the task too, assimilated if the expert does and the base policy
    does not, and self-evolved if neither does.

    Args:
        label: the method's.
        domains: task → domain, of the tasks that are counted.
        base: tasks that the base policy solves.
        expert: tasks that the expert solves.
        final: tasks that the trained policy solves.
    """
    rows: list[Row] = []
    for domain in sorted(set(domains.values())):
        tasks = {task for task, own in domains.items() if own == domain}
        solved, known, shown = tasks & set(final), tasks & set(base), tasks & set(expert)
        rows.append(
            {
                "method": label,
                "domain": domain,
                "tasks": len(tasks),
                "base": len(known),
                "expert": len(shown),
                "solved": len(solved),
                "retained": len(solved & known),
                "assimilated": len((solved & shown) - known),
                "self_evolved": len(solved - shown - known),
            }
        )
    return rows


def solved_tasks(counts: Mapping[str, Sequence[int]]) -> set[str]:
    """Tasks of which more than half of the episodes succeeded: of [successes, episodes] per task."""
    return {task for task, (wins, played) in counts.items() if 2 * wins > played}


def draw_domains(figure: Figure, rows: Sequence[Row]) -> None:
    """One panel per method: stacked bars per domain, beside those of the base policy and of the expert."""
    labels = list(dict.fromkeys(str(row["method"]) for row in rows))
    for axis, label in zip(figure.subplots(len(labels), 1, squeeze=False)[:, 0], labels, strict=True):
        own = [row for row in rows if row["method"] == label]
        places = range(len(own))
        below = [0] * len(own)
        for part in PARTS:
            axis.bar(places, [row[part] for row in own], 0.4, bottom=below, label=part.replace("_", "-"))
            below = [height + row[part] for height, row in zip(below, own, strict=True)]
        for shift, name, color in ((0.3, "base", "lightgrey"), (0.45, "expert", "grey")):
            axis.bar([place + shift for place in places], [row[name] for row in own], 0.15, label=name, color=color)
        axis.set_xticks(list(places), [shown(str(row["domain"])) for row in own], rotation=30)
        axis.set(title=shown(label), ylabel="solved tasks")
        axis.legend()
