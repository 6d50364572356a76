// A table of any length: only the lines in sight are elements.
"use strict";

const LINE = 28;  // height of a line, pixels, as in view.css

/**
 * Args: columns [{name, title, cell(row) → text or element, value(row), width}], link(row) → address,
 * sorted(name) called on a click on a title. Returns {element, show(rows, sort, descending)}.
 */
function longTable(columns, link, sorted) {
  const template = columns.map((column) => column.width).join(" ");
  const heads = columns.map((column) => el("button", { type: "button", class: column.number ? "number" : null, onclick: () => sorted(column.name) }, column.title));
  const body = el("div", { class: "lines" });
  const window_ = el("div", { class: "window", tabindex: "0" }, body);
  const head = el("div", { class: "line head", style: `grid-template-columns: ${template}` }, heads);
  const element = el("div", { class: "long-table" }, head, window_);
  let rows = [];
  let drawn = "";
  let lines = new Map();  // number of a row → its line, of those that are drawn

  function lineOf(number) {
    const row = rows[number];
    return el("a", { class: "line", href: link(row), style: `grid-template-columns: ${template}; top: ${number * LINE}px` },
      columns.map((column) => el("span", { class: column.number ? "number" : null }, column.cell(row))));
  }

  /** Lines that stay in sight remain the same elements, so that the one with the keyboard's focus keeps it. */
  function draw() {
    const first = Math.max(0, Math.floor(window_.scrollTop / LINE) - 5);
    const last = Math.min(rows.length, first + Math.ceil(window_.clientHeight / LINE) + 10);
    if (drawn === `${first}-${last}`) return;
    drawn = `${first}-${last}`;
    for (const [number, line] of lines) {
      if (number >= first && number < last) continue;
      line.remove();
      lines.delete(number);
    }
    for (let number = first; number < last; number++) {
      if (lines.has(number)) continue;
      lines.set(number, lineOf(number));
      body.insertBefore(lines.get(number), body.children[number - first] ?? null);
    }
  }

  window_.addEventListener("scroll", draw, { passive: true });
  new ResizeObserver(() => { drawn = ""; draw(); }).observe(window_);
  return {
    element,
    show(newRows, sort, descending) {
      rows = newRows;
      drawn = "";
      lines = new Map();
      body.replaceChildren();
      body.style.height = `${rows.length * LINE}px`;
      columns.forEach((column, index) => {
        heads[index].dataset.order = column.name === sort ? (descending ? "down" : "up") : "";
      });
      draw();
    },
  };
}

/** The rows in the order of a column; those without a value last. */
function ordered(rows, column, descending) {
  if (!column) return rows;
  const sign = descending ? -1 : 1;
  return rows.map((row) => [column.value(row), row]).sort(([a], [b]) => {
    if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
    if (b === null || b === undefined) return -1;
    return sign * (a < b ? -1 : a > b ? 1 : 0);
  }).map(([, row]) => row);
}
