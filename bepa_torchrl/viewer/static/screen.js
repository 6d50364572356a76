// A screenshot with the actions of a step drawn on it, and the tokens of its response.
"use strict";

/** The screenshot of a step; what was done is drawn on it when its size is known. */
function screenOf(step) {
  if (!step?.screenshot) return el("div", { class: "screen none" }, "no screenshot");
  const picture = el("img", { src: step.screenshot, alt: "screenshot before the step", decoding: "async" });
  const box = el("div", { class: "screen" }, picture);
  picture.onload = () => {
    const { naturalWidth: width, naturalHeight: height } = picture;
    picture.classList.toggle("pixels", width < 400);
    box.style.setProperty("--ratio", width / height);
    box.append(el("svg", { viewBox: `0 0 ${width} ${height}`, class: "marks" },
      (step.actions ?? []).map((action, index) => marksOf(action, index, Math.max(width, height), step.actions.length > 1))));
  };
  picture.onerror = () => box.replaceChildren("the screenshot cannot be read");
  return box;
}

function marksOf(action, index, size, numbered) {
  const unit = size / 60;
  const parts = [el("title", {}, visible(`${action.kind} ${action.text ?? ""}`))];
  const [x, y] = action.start ?? [];
  if (action.start && action.end) parts.push(...arrow([x, y], action.end, unit));
  else if (action.kind === "scroll") parts.push(...arrow(...scrollOf(action, size), unit));
  if (action.start) {
    parts.push(el("circle", { cx: x, cy: y, r: unit, class: "ring" }), el("circle", { cx: x, cy: y, r: unit / 4, class: "dot" }));
    if (/double/.test(action.kind)) parts.push(el("circle", { cx: x, cy: y, r: unit * 1.5, class: "ring" }));
    if (/right/.test(action.kind)) parts.push(el("rect", { x: x - unit * 1.4, y: y - unit * 1.4, width: unit * 2.8, height: unit * 2.8, class: "ring" }));
    if (numbered) parts.push(el("text", { x: x + unit * 1.3, y: y - unit * 0.6, "font-size": unit * 1.6 }, String(index + 1)));
  }
  return el("g", { class: `mark ${action.kind}` }, parts);
}

function scrollOf(action, size) {
  const [x, y] = action.start ?? [size / 2, size / 4];
  const [dx, dy] = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] }[action.text] ?? [0, 1];
  return [[x, y], [x + dx * size / 8, y + dy * size / 8]];
}

function arrow([x1, y1], [x2, y2], unit) {
  const angle = Math.atan2(y2 - y1, x2 - x1);
  const corner = (turn) => `${x2 - unit * 1.6 * Math.cos(angle + turn)},${y2 - unit * 1.6 * Math.sin(angle + turn)}`;
  return [
    el("line", { x1, y1, x2, y2, class: "ring" }),
    el("polygon", { points: `${x2},${y2} ${corner(0.45)} ${corner(-0.45)}`, class: "dot" }),
  ];
}

const TOKEN_COLOURS = {
  probability: { label: "probability", known: (step) => step.log_probs, value: (step, i) => improbability(step.log_probs?.[i]) },
  current: { label: "probability before the update", known: (step) => step.old_log_probs, value: (step, i) => improbability(step.old_log_probs?.[i]) },
  ratio: { label: "ratio", known: (step) => step.ratios, value: (step, i) => Math.min(1, Math.abs(Math.log(step.ratios?.[i] ?? 1)) / 0.5) },
  clipped: { label: "clipped", known: (step) => step.clipped && [true], value: (step, i) => Number(step.clipped?.includes(i) ?? 0) },
};

function improbability(logProb) {
  return logProb === null || logProb === undefined ? 0 : 1 - Math.exp(logProb);
}

/** The tokens of a response, coloured; each has its numbers as a title. */
function tokensOf(step, colour, advantage) {
  const count = Math.max(step.tokens?.length ?? 0, step.log_probs?.length ?? 0, step.old_log_probs?.length ?? 0);
  if (!count) return el("p", { class: "hint" }, "no tokens recorded");
  const pieces = Array.from({ length: count }, (_, i) => el("span", {
    class: `token${step.tokens?.length ? "" : " nameless"}${step.clipped?.includes(i) ? " clipped" : ""}`,
    style: `--strength: ${TOKEN_COLOURS[colour].value(step, i).toFixed(3)}`,
    title: tokenTitle(step, i, advantage),
  }, step.tokens?.length ? visible(step.tokens[i]).replaceAll("\n", "↵\n") : " "));
  return el("div", { class: "tokens" }, pieces);
}

function tokenTitle(step, i, advantage) {
  const lines = [JSON.stringify(step.tokens?.[i] ?? "")];
  const add = (label, value, digits = 4) => { if (value !== null && value !== undefined) lines.push(`${label} ${value.toFixed(digits)}`); };
  add("probability", step.log_probs?.[i] === null ? null : step.log_probs && Math.exp(step.log_probs[i]));
  add("log-prob as sampled", step.log_probs?.[i]);
  add("log-prob before the update", step.old_log_probs?.[i]);
  add("ratio", step.ratios?.[i]);
  add("advantage", advantage, 2);
  if (step.clipped) lines.push(step.clipped.includes(i) ? "clipped" : "not clipped");
  return lines.join("\n");
}
