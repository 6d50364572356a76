// One episode step by step, and next to it another episode of the same task, aligned at the last common screen.
"use strict";

(() => {
  let keys = null;  // function of a pressed key, of the page that is shown

  document.addEventListener("keydown", (event) => {
    if (!keys || event.ctrlKey || event.altKey || event.metaKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
    const move = { ArrowRight: 1, j: 1, ArrowLeft: -1, k: -1 }[event.key];
    if (move) {
      event.preventDefault();
      keys(move);
    }
  });
  window.addEventListener("hashchange", () => { keys = null; });

  view.pages.episode = async (page, parameters) => {
    const row = view.byId.get(parameters.id);
    if (!row) {
      page.replaceChildren(el("p", { class: "warning" }, `There is no episode ${visible(parameters.id ?? "")}. `, el("a", { href: "#episodes" }, "All episodes")));
      return;
    }
    const [one, other, plans] = await Promise.all([
      view.episode(row), view.byId.has(parameters.with) ? view.episode(view.byId.get(parameters.with)) : null, view.loadPlans(),
    ]);
    if (!page.isConnected) return;
    const shift = other ? alignment(one, other) : null;
    const state = { step: Number(parameters.step ?? 1) - 1, colour: coloursOf(one).includes(parameters.colour) ? parameters.colour : "probability" };
    const strip = el("div", { class: "strip" });
    const panes = el("div", { class: `panes${other ? " two" : ""}` });
    const first = other && shift ? Math.min(0, -shift.by) : 0;
    const last = Math.max(one.count ?? 0, one.steps?.length ?? 0, other ? (other.steps?.length ?? 0) - (shift?.by ?? 0) : 0) - 1;

    function draw() {
      state.step = Math.max(first, Math.min(last, state.step));
      const place = state.step + (shift?.by ?? 0);
      panes.replaceChildren(pane(one, state.step, state.colour, plans), ...(other ? [pane(other, place, state.colour, plans)] : []));
      const focused = strip.contains(document.activeElement);
      strip.replaceChildren(...stepButtons(one, state.step, (step) => { state.step = step; draw(); }));
      if (focused) strip.querySelector(".chosen")?.focus({ preventScroll: true });
      strip.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
      keepAddress("episode", { ...parameters, step: state.step + 1, colour: state.colour === "probability" ? "" : state.colour });
    }

    fill(page,
      heading(row, one), compare(row, parameters, one, other, shift),
      el("div", { class: "bar" },
        el("button", { type: "button", title: "← or k", onclick: () => { state.step--; draw(); } }, "← previous"),
        el("button", { type: "button", title: "→ or j", onclick: () => { state.step++; draw(); } }, "next →"),
        strip, colours(one, state, draw)),
      panes);
    keys = (move) => { state.step += move; draw(); };
    draw();
  };

  function heading(row, episode) {
    const facts = [
      ["outcome", badge(row.outcome)], ["source", words(row.source)], ["part", row.part + (row.mode ? `, ${row.mode}` : "")],
      ["method", `${row.run} ${row.method}`],
      ["iteration", row.iteration === null ? null : el("a", { href: address("update", { run: row.run, method: row.method, iteration: row.iteration }) }, String(row.iteration))],
      ["group", row.group === null || row.part !== "training" ? null : el("a", { href: address("group", { stream: row.stream.name, group: row.group }) }, `${row.group}, slot ${row.slot}`)],
      ["advantage", row.advantage === null ? null : shown(row.advantage, 3)],
      ["policy version", row.version === null ? null : shown(row.version)],
      ["in the updates", episode.updates ? `${episode.updates.join(", ")}, ${plural(episode.updates[0] - 1 - row.version, "step")} after it was sampled` : null],
      ["replayed", episode.replayed ? `${plural(episode.replayed, "step")} of a cached success, not trained on` : null],
      ["a copy of", episode.copied_from ? originOf(row, episode.copied_from) : null],
      ["ended by", row.stop ? words(row.stop) : null], ["expert", episode.expert ? visible(episode.expert) : null],
      ["mean log-prob", row.sampled === null ? null : `${shown(row.sampled)}${row.current === null ? "" : `, before the update ${shown(row.current)}`}`],
      ["reward by a judge, no verifier", episode.judge ? visible(episode.judge) : null],
      ["problem", episode.problem ? visible(episode.problem) : null],
    ].filter(([, value]) => value);
    return el("section", { class: "heading" }, el("h1", {}, visible(row.instruction || row.task)),
      el("p", { class: "hint" }, visible(row.task)), el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  }

  /** A link to the rollout <group>-<slot> of the same method that an injected trace is a copy of. */
  function originOf(row, id) {
    const rollout = view.rows.find((each) => each.stream === row.stream && !each.injected && `${each.group}-${each.slot}` === id);
    return rollout ? el("a", { href: episodeLink(row, { with: rollout.id }) }, `rollout ${id}`) : `rollout ${id}`;
  }

  /** The other episodes of the task: buttons for the first of each kind, and a list of all. */
  function compare(row, parameters, one, other, shift) {
    const others = (view.byTask.get(row.task) ?? []).filter((each) => each !== row);
    if (!others.length) return null;
    const go = (id) => { location.hash = address("episode", { ...parameters, with: id }); };
    const kinds = new Map();
    for (const each of others) {
      const kind = each.part === "training" ? (each.injected ? `injected, ${words(each.source)}` : `${each.outcome} in training`) : `${each.part}, ${each.method}`;
      if (!kinds.has(kind)) kinds.set(kind, each);
    }
    return el("div", { class: "bar" }, "next to it: ",
      [...kinds].map(([kind, each]) => el("a", { class: `button${parameters.with === each.id ? " chosen" : ""}`, href: episodeLink(row, { ...parameters, id: row.id, with: each.id }) }, kind)),
      choice("with", [["", "any other…"], ...others.slice(0, 2000).map((each) => [each.id, label(each)])], parameters.with ?? "", go),
      other ? el("a", { class: "button", href: episodeLink(row) }, "alone") : null,
      other ? el("span", { class: "hint" }, shift ? `aligned at the last common screen: step ${shift.one + 1} here, step ${shift.other + 1} there` : "no screen in common: aligned at the first step") : null);
  }

  function label(row) {
    const when = row.iteration === null ? row.part : `iteration ${row.iteration}, slot ${row.slot}`;
    return `${row.run} ${row.method}: ${when}, ${words(row.source)}, ${row.outcome}${row.mode ? `, ${row.mode}` : ""}`;
  }

  /** The last screen of one that the other has, too, and how many steps later the other has it; null if there is none. */
  function alignment(one, other) {
    const places = new Map((other.steps ?? []).map((step, index) => [step.screenshot, index]));
    for (let index = (one.steps?.length ?? 0) - 1; index >= 0; index--) {
      const screen = one.steps[index].screenshot;
      if (screen && places.has(screen)) return { one: index, other: places.get(screen), by: places.get(screen) - index };
    }
    return null;
  }

  function stepButtons(episode, current, go) {
    return (episode.steps ?? []).map((step, index) => {
      const known = (step.log_probs ?? []).filter((value) => value !== null);
      const lowest = known.length ? Math.exp(Math.min(...known)) : null;
      return el("button", { type: "button", class: index === current ? "chosen" : null, onclick: () => go(index),
        style: `--strength: ${lowest === null ? 0 : (1 - lowest).toFixed(2)}`,
        title: `step ${index + 1}${index < episode.replayed ? ", replayed" : ""}${lowest === null ? "" : `, least probable token ${lowest.toFixed(3)}`}` }, String(index + 1));
    });
  }

  /** The names of the colours that some step has the numbers of. */
  function coloursOf(episode) {
    return Object.keys(TOKEN_COLOURS).filter((name) => (episode.steps ?? []).some((step) => TOKEN_COLOURS[name].known(step)?.length));
  }

  function colours(episode, state, draw) {
    const known = coloursOf(episode);
    if (!known.length) return null;
    const lacking = Object.keys(TOKEN_COLOURS).filter((name) => !known.includes(name)).map((name) => TOKEN_COLOURS[name].label);
    return el("label", {}, lacking.length ? el("span", { class: "hint" }, `${lacking.join(" and ")} not recorded; `) : null, "tokens by ",
      choice("colour", known.map((name) => [name, TOKEN_COLOURS[name].label]), state.colour, (value) => { state.colour = value; draw(); }));
  }

  function pane(episode, index, colour, plans) {
    const step = episode.steps?.[index];
    const title = el("h2", {}, el("a", { href: episodeLink(episode.row) }, `${words(episode.row.source)}, ${episode.row.method}`), " ", badge(episode.row.outcome),
      ` step ${index + 1} of ${episode.count ?? episode.steps?.length ?? 0}${index < episode.replayed ? ", replayed" : ""}`);
    if (!step) {
      const why = episode.steps?.length ? (index < 0 ? "not begun" : "ended") : "its steps are not recorded";
      return el("section", { class: "pane" }, title, index >= 0 && episode.final ? screenOf({ screenshot: episode.final }) : null, el("p", { class: "hint" }, why), planOf(episode, plans));
    }
    return el("section", { class: "pane" }, title, screenOf(step),
      field("thought", step.thought), field("action", step.action, "code"), field("as executed", step.executed, "code"),
      step.note ? el("p", { class: "warning" }, visible(step.note)) : null,
      step.tokens || step.log_probs ? el("div", { class: "field" }, el("h3", {}, "tokens"), tokensOf(step, colour, episode.advantage)) : null,
      planOf(episode, plans));
  }

  function field(name, text, kind = "text") {
    if (!text) return null;
    return el("div", { class: "field" }, el("h3", {}, name), el("pre", { class: kind }, visible(text)));
  }

  function planOf(episode, plans) {
    if (!episode.plan) return null;
    const text = plans[episode.plan] ?? `The plan ${episode.plan} is not in the run's folder.`;
    return el("details", { class: "field", open: true }, el("summary", {}, "the expert's plan in its prompt"), el("pre", { class: "text" }, visible(text)));
  }
})();
