// One iteration of a method: its groups, and its metrics.
"use strict";

view.pages.update = async (page, parameters) => {
  const { run, method } = parameters;
  const iteration = Number(parameters.iteration);
  const metrics = (await view.loadMetrics())[run]?.[method] ?? {};
  if (!page.isConnected) return;
  const rollouts = view.rows.filter((row) => row.run === run && row.method === method && row.part === "training");
  const rows = rollouts.filter((row) => row.iteration === iteration);
  const groups = new Map();
  for (const row of rows) groups.set(row.group, [...(groups.get(row.group) ?? []), row]);
  const iterations = new Set([...(metrics.iteration ?? []), ...rollouts.map((row) => row.iteration)]);
  if (!iterations.has(iteration)) {
    page.replaceChildren(el("p", { class: "warning" }, `There is no iteration ${visible(parameters.iteration ?? "")} of ${visible(run ?? "")} ${visible(method ?? "")}. `, el("a", { href: "#run" }, "All runs")));
    return;
  }
  const other = (step) => (iterations.has(iteration + step) ? el("a", { class: "button", href: address("update", { ...parameters, iteration: iteration + step }) }, step < 0 ? "← previous" : "next →") : null);
  const lines = (metrics.iteration ?? []).flatMap((value, index) => (value === iteration ? [index] : []));
  const values = Object.keys(metrics).filter((key) => key !== "iteration").map((key) => [key, lines.map((line) => metrics[key][line]).find((value) => value !== null && value !== undefined)]);
  // optimiser steps are numbered by the policy's version after each
  const total = values.find(([key]) => key === "policy_version")?.[1];
  const taken = values.find(([key]) => key === "train/optimizer_steps")?.[1] ?? 0;
  const updates = total === undefined ? [] : Array.from({ length: taken }, (_, index) => total - taken + 1 + index);
  const folder = view.runs.find((each) => each.name === run)?.folder ?? run;
  fill(page,
    el("section", { class: "heading" }, el("h1", {}, `Iteration ${iteration} of ${run} ${method}`)),
    el("div", { class: "bar" }, other(-1), other(1), el("a", { class: "button", href: address("episodes", { run, method, iteration: String(iteration) }) }, "its episodes"),
      updates.length ? el("span", { class: "hint" }, "every row with its origin: ", el("code", {}, `bepa why ${quoted(folder)} --update ${updates[0]}`), updates.length > 1 ? ` to ${updates.at(-1)}` : "") : null),
    el("h2", {}, "Groups"),
    groups.size ? tableOf(["group", "task", "successes", "replaced slot", "by", "log-prob of the trace"], [...groups].map(([group, members]) => groupLine(group, members)))
      : el("p", { class: "hint" }, "No episode of this iteration is recorded: see record.every."),
    el("h2", {}, "Metrics"),
    tableOf(["metric", "value"], values.filter(([, value]) => value !== undefined).map(([key, value]) => [key, typeof value === "number" ? shown(value, 5) : String(value)])));

  function groupLine(group, members) {
    const injected = members.find((row) => row.injected);
    const own = members.filter((row) => !row.injected);
    return [
      el("a", { href: address("group", { stream: members[0].stream.name, group }) }, String(group)), visible(members[0].task),
      own.length ? successesOf(own).join("") : "not recorded",
      injected ? el("a", { href: episodeLink(injected) }, String(injected.slot)) : "", injected ? words(injected.source) : "", injected ? shown(injected.current ?? injected.sampled) : "",
    ];
  }
};
