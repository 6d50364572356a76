// The rollouts of a group, the one that was replaced, and its replacement.
"use strict";

view.pages.group = async (page, parameters) => {
  const group = Number(parameters.group);
  const inGroup = (number) => view.rows.filter((row) => row.stream.name === parameters.stream && row.group === number);
  const rows = inGroup(group).sort((a, b) => a.slot - b.slot || a.injected - b.injected);
  if (!rows.length) {
    page.replaceChildren(el("p", { class: "warning" }, "No episode of this group is recorded."));
    return;
  }
  const injected = rows.find((row) => row.injected);
  const first = rows[0];
  const own = rows.filter((row) => !row.injected);
  const [solved, lost] = successesOf(own);
  const added = injected && own.length > 0 && own.every((row) => row.slot < injected.slot);  // LUFFY's
  const largest = Math.max(...rows.map((row) => Math.abs(row.advantage ?? 0)), 1e-9);
  const near = (number) => (inGroup(number).length ? el("a", { class: "button", href: address("group", { ...parameters, group: number }) }, number < group ? "← previous" : "next →") : null);
  const cards = rows.map((row) => [row, el("a", { class: `card ${row.injected ? "injected" : replacedBy(row) ? "replaced" : ""}`, href: episodeLink(row, injected && !row.injected ? { with: injected.id } : {}) })]);
  page.replaceChildren(
    el("section", { class: "heading" }, el("h1", {}, visible(first.instruction || first.task)), el("p", { class: "hint" }, visible(first.task)),
      el("p", {}, `Group ${group}: ${solved} recorded rollouts succeeded${lost}. `,
        !injected ? "Nothing was replaced. " : !added ? `Slot ${injected.slot} was replaced by a ${words(injected.source)} trace. ` : `A ${words(injected.source)} trace was injected as slot ${injected.slot}. `,
        first.iteration === null ? null : el("a", { href: address("update", { run: first.run, method: first.method, iteration: first.iteration }) }, `To the update of iteration ${first.iteration}`))),
    el("div", { class: "bar" }, near(group - 1), near(group + 1)),
    el("div", { class: "cards" }, cards.map(([, card]) => card)));
  for (const [row, card] of cards) card.replaceChildren(...cardOf(row));
  for (const [row, card] of cards) {
    const steps = (await view.episode(row)).steps ?? [];
    if (!page.isConnected) return;
    const last = steps.at(-1);
    if (last) card.append(picture(last), el("p", { class: "hint clipped-text" }, visible(last.thought || last.action || "")));
  }

  function replacedBy(row) {
    return injected && !row.injected && row.slot === injected.slot;
  }

  function cardOf(row) {
    const role = row.injected ? `${added ? "added" : "replacement"}: ${words(row.source)}` : replacedBy(row) ? "replaced, not trained on" : words(row.source);
    return [
      el("p", {}, el("strong", {}, `slot ${row.slot} `), badge(row.outcome)), el("p", {}, role),
      el("p", { class: "hint" }, `${plural(row.steps, "step")}, ${words(row.stop)}`),
      row.advantage === null ? el("p", { class: "hint" }, "no advantage") : el("p", { class: "advantage", title: `advantage ${row.advantage}` },
        el("span", { class: row.advantage < 0 ? "bar-negative" : "bar-positive", style: `width: ${(Math.abs(row.advantage) / largest) * 50}%` }), `advantage ${shown(row.advantage, 2)}`),
    ];
  }

  function picture(step) {
    return step.screenshot ? el("img", { src: step.screenshot, loading: "lazy", alt: "the screen before the last step", onload: (event) => event.target.classList.toggle("pixels", event.target.naturalWidth < 200) }) : el("div", { class: "screen none" }, "no screenshot");
  }
};
