// The cache: what is known of each task's trace over the run.
"use strict";

(() => {
  const WIDTH = 420;  // of a timeline, units

  view.pages.cache = async (page, parameters) => {
    const allRefreshes = await view.load("refreshes");
    if (!page.isConnected) return;
    const runs = view.runs.filter((run) => run.methods.length).flatMap((run) => run.methods.map((method) => [run.name, method]));
    const [run, method] = runs.find(([name, each]) => name === parameters.run && (!parameters.method || each === parameters.method)) ?? runs.find(([name, each]) => injectedOf(name, each).length) ?? runs[0] ?? [];
    if (!run) {
      page.replaceChildren(el("p", { class: "hint" }, "There is no training in these folders, and so no cache of it."));
      return;
    }
    const injected = injectedOf(run, method);
    const successes = view.rows.filter((row) => row.run === run && row.method === method && row.part === "training" && row.outcome === "success" && !row.injected);
    const refreshes = (allRefreshes[run]?.[method] ?? []).map(([task, iteration, group]) => ({ task, iteration, group }));
    const seeds = view.rows.filter((row) => row.run === run && row.part === "seed traces");
    const last = Math.max(1, ...view.rows.filter((row) => row.run === run && row.method === method).map((row) => row.iteration ?? 0));
    const tasks = [...new Set([...injected, ...refreshes, ...seeds].map((row) => row.task))].map((task) => ({
      task, injected: injected.filter((row) => row.task === task), successes: successes.filter((row) => row.task === task), seeds: seeds.filter((row) => row.task === task),
      refreshes: refreshes.filter((each) => each.task === task), stream: `${run}/${method}/episodes`,
    })).sort((a, b) => b.injected.length - a.injected.length || (a.task < b.task ? -1 : 1));
    page.replaceChildren(
      el("div", { class: "bar" }, choice("run", runs.map(([name, each]) => [`${name} ${each}`, `${name} ${each}`]), `${run} ${method}`, (value) => {
        const [name, each] = runs.find((pair) => pair.join(" ") === value);
        location.hash = address("cache", { run: name, method: each });
      }), el("span", {}, `${plural(injected.length, "injection")} of ${plural(tasks.filter((each) => each.injected.length).length, "task")}`), legend()),
      el("p", { class: "hint" }, refreshes.length ? "Squares: the cache was refreshed. Circles: its trace was injected. A trace is dated by the policy version that sampled it."
        : "This record has no refreshes (groups.jsonl). A trace is dated by the policy version that sampled it; successes may have refreshed it."),
      tableOf(["task", "seeds", "refreshed", "injected", "traces", "newest version", `iterations 1 to ${last}`, "log-prob, first · last"], tasks.map((each) => line(each, last)), { class: "cache" }));
  };

  function injectedOf(run, method) {
    return view.rows.filter((row) => row.run === run && row.method === method && row.injected);
  }

  function line(each, last) {
    const traces = new Map(each.injected.map((row) => [`${row.source} ${row.version}`, row]));
    const newest = each.injected.at(-1);
    return [
      el("a", { href: address("episodes", { task: each.task }) }, visible(each.task)),
      el("span", {}, each.seeds.flatMap((row, index) => [index ? ", " : "", el("a", { href: episodeLink(row) }, row.method)])),
      each.refreshes.length ? String(each.refreshes.length) : "–", String(each.injected.length), traces.size ? [...traces.values()].map((row) => words(row.source)).join(", ") : "",
      newest ? shown(newest.version) : "–", timeline(each, last), newest ? logProbs(each.injected[0], newest) : "",
    ];
  }

  /** Log-probs of a trace as sampled, and before the update that it was injected into. */
  function logProbs(first, last) {
    const part = (row) => el("a", { href: episodeLink(row) }, `${shown(row.sampled)} → ${shown(row.current)}`);
    return el("span", { title: "of the trace at its first and at its last injection: as sampled → before the update" }, part(first), first === last ? null : " · ", first === last ? null : part(last));
  }

  function timeline(each, last) {
    const x = (row) => 8 + ((row.iteration - 1) / Math.max(1, last - 1)) * (WIDTH - 16);
    return el("svg", { viewBox: `0 0 ${WIDTH} 24`, class: "timeline" },
      el("line", { x1: 8, x2: WIDTH - 8, y1: 12, y2: 12 }),
      each.successes.map((row) => el("line", { x1: x(row), x2: x(row), y1: 5, y2: 19, class: "success" }, el("title", {}, `iteration ${row.iteration}: success of the policy, version ${row.version}`))),
      each.refreshes.map((row) => el("a", { href: address("group", { stream: each.stream, group: row.group }) },
        el("rect", { x: x(row) - 5, y: 7, width: 10, height: 10, class: "refresh" }, el("title", {}, `iteration ${row.iteration}: refreshed by a success of group ${row.group}`)))).map(svgLink),
      each.injected.map((row) => el("a", { href: episodeLink(row) }, point(row, x(row)))).map(svgLink));
  }

  function point(row, x) {
    return el("circle", { cx: x, cy: 12, r: 6, class: `trace ${row.source}` },
      el("title", {}, `iteration ${row.iteration}: ${words(row.source)} trace of version ${row.version} injected, log-prob ${shown(row.sampled)} → ${shown(row.current)}`));
  }

  /** A link within a drawing, which is not HTML's. */
  function svgLink(link) {
    const inside = document.createElementNS("http://www.w3.org/2000/svg", "a");
    inside.setAttribute("href", link.getAttribute("href"));
    inside.append(...link.childNodes);
    return inside;
  }

  function legend() {
    return el("span", { class: "legend" }, ["self_rolled", "refreshed", "converted", "raw_expert"].map((source) => [
      el("svg", { viewBox: "0 0 14 14", class: "dot-sign" }, el("circle", { cx: 7, cy: 7, r: 6, class: `trace ${source}` })), words(source)]).flat(),
      el("svg", { viewBox: "0 0 14 14", class: "dot-sign" }, el("line", { x1: 7, x2: 7, y1: 0, y2: 14, class: "success" })), "success");
  }
})();
