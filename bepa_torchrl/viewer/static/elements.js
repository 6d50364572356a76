// Elements of the pages. Everything that a model or a log wrote is set as text, never as HTML.
"use strict";

/** An element: el("a", {href: "#", class: "x"}, "text", other, ...). Attributes that are null are left out. */
function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "circle", "line", "path", "rect", "text", "title", "polygon"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replaces what is in an element; null is nothing. */
function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

// control characters, and those that change the direction of text
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Model text with invisible characters made visible. */
function visible(text) {
  return String(text).replace(INVISIBLE, (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/** A number for people; "–" if it is not recorded. */
function shown(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return Number.isInteger(value) ? String(value) : value.toFixed(digits).replace(/^-(0\.0+)$/, "$1");
}

/** A word of a command line, as a shell reads it. */
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** The address of a page. */
function address(page, parameters = {}) {
  const kept = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(kept).toString();
  return `#${page}${query ? `?${query}` : ""}`;
}

/** Changes the address without a new entry in the history and without drawing the page again. */
function keepAddress(page, parameters) {
  history.replaceState(null, "", address(page, parameters));
}

/** A link to an episode, with more parameters. */
const episodeLink = (row, more = {}) => address("episode", { id: row.id, ...more });

/** How many of the rollouts that have a reward succeeded; a desktop that failed is none of them. */
function successesOf(rows) {
  const scored = rows.filter((row) => row.outcome !== "no reward");
  const lost = rows.length - scored.length;
  return [`${scored.filter((row) => row.outcome === "success").length} of ${scored.length}`, lost ? `, ${lost} without a reward` : ""];
}

/** The outcome as a coloured word. */
const badge = (outcome) => el("span", { class: `badge ${outcome.replace(" ", "-")}` }, outcome);

/** A table from its head and rows of cells, which are text or elements; numbers are aligned right. */
function tableOf(head, rows, attributes = {}) {
  const cell = (tag) => (content) => el(tag, { class: /^[–\d.−-]+( %)?$/.test(content) ? "number" : null }, content);
  return el("div", { class: "scroll" }, el("table", attributes,
    el("thead", {}, el("tr", {}, head.map(cell("th")))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell("td")))))));
}

/** A drop-down list of [value, label]. */
function choice(name, options, value, change) {
  const chosen = (event) => {
    event.target.blur();  // keys go to the page again
    change(event.target.value);
  };
  return el("select", { name, "aria-label": name, onchange: chosen },
    options.map(([key, label]) => el("option", { value: key, selected: key === value }, label)));
}
