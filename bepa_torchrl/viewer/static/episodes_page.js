// All episodes: filtered, sorted, linkable.
"use strict";

(() => {
  const COLUMNS = [
    { name: "task", title: "task", width: "minmax(15ch, 2fr)", value: (row) => row.task, cell: (row) => visible(row.task) },
    { name: "method", title: "method", width: "minmax(6ch, 1fr)", value: (row) => row.method, cell: methodOf },
    { name: "part", title: "part", width: "minmax(8ch, 1fr)", value: (row) => row.part, cell: (row) => row.part + (row.mode ? `, ${row.mode}` : "") },
    { name: "iteration", title: "iteration", width: "8ch", number: true, value: (row) => row.iteration, cell: (row) => shown(row.iteration) },
    { name: "group", title: "group", width: "6ch", number: true, value: (row) => row.group, cell: (row) => shown(row.group) },
    { name: "slot", title: "slot", width: "4ch", number: true, value: (row) => row.slot, cell: (row) => shown(row.slot) },
    { name: "source", title: "source", width: "minmax(15.5ch, 1fr)", value: (row) => row.source, cell: (row) => words(row.source) + (row.injected ? ", injected" : "") },
    { name: "outcome", title: "outcome", width: "9ch", value: (row) => row.outcome, cell: (row) => badge(row.outcome) },
    { name: "stop", title: "stop reason", width: "minmax(11ch, 1fr)", value: (row) => row.stop, cell: (row) => words(row.stop) },
    { name: "steps", title: "steps", width: "5ch", number: true, value: (row) => row.steps, cell: (row) => shown(row.steps) },
    { name: "advantage", title: "advantage", width: "10ch", number: true, value: (row) => row.advantage, cell: (row) => shown(row.advantage, 2) },
    { name: "sampled", title: "log-prob", width: "8ch", number: true, value: (row) => row.sampled, cell: (row) => shown(row.sampled) },
    { name: "version", title: "version", width: "7ch", number: true, value: (row) => row.version, cell: (row) => shown(row.version) },
  ];
  const LISTS = ["run", "method", "part", "source", "outcome", "stop"];

  function methodOf(row) {
    return view.runs.length > 1 ? `${row.run} ${row.method}` : row.method;
  }

  /** The function that says whether a row is in the filter's iterations: "3", "3-7", "3-", "-7". */
  function iterationTest(text) {
    const match = /^\s*(\d*)\s*(-?)\s*(\d*)\s*$/.exec(text);
    if (!match || !text.trim()) return null;
    const low = match[1] === "" ? -Infinity : Number(match[1]);
    const high = match[2] ? (match[3] === "" ? Infinity : Number(match[3])) : low;
    return (row) => row.iteration !== null && row.iteration >= low && row.iteration <= high;
  }

  /** The rows that a filter keeps. */
  view.filtered = (filter) => {
    const tests = LISTS.filter((name) => filter[name]).map((name) => (row) => row[name] === filter[name]);
    if (filter.task) tests.push((row) => row.task.includes(filter.task));
    const iterations = iterationTest(filter.iteration ?? "");
    if (iterations) tests.push(iterations);
    const sought = (filter.text ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    if (sought.length) tests.push((row) => sought.every((word) => row.words.includes(word) || row.text?.includes(word)));
    return tests.length ? view.rows.filter((row) => tests.every((test) => test(row))) : view.rows;
  };

  view.pages.episodes = (page, parameters) => {
    const filter = { ...parameters };
    const count = el("span", { class: "count", role: "status" });
    const table = longTable(COLUMNS, (row) => episodeLink(row), (name) => {
      filter.descending = filter.sort === name && !filter.descending ? "1" : "";
      filter.sort = name;
      draw();
    });

    function draw() {
      const column = COLUMNS.find((each) => each.name === filter.sort);
      const rows = ordered(view.filtered(filter), column, Boolean(filter.descending));
      table.show(rows, filter.sort, Boolean(filter.descending));
      count.textContent = `${rows.length.toLocaleString("en")} of ${plural(view.rows.length, "episode")}`;
      keepAddress("episodes", filter);
    }

    function set(name, value) {
      filter[name] = value;
      draw();
      if (name === "text" && value) searchTexts();
    }

    async function searchTexts() {
      const searched = el("span", { class: "hint" });
      count.after(searched);
      await view.loadTexts((done, all) => { searched.textContent = done < all ? `searching texts ${done} of ${all}` : ""; });
      searched.remove();
      if (count.isConnected) draw();
    }

    const input = (name, label, list) => el("label", {}, label,
      el("input", { name, value: filter[name] ?? "", list, autocomplete: "off", oninput: (event) => set(name, event.target.value) }));
    fill(page,
      el("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
        input("text", "text", null), input("task", "task", "tasks"), input("iteration", "iteration, e.g. 3-7", null),
        LISTS.map((name) => listOf(name, filter, set)),
        el("a", { class: "button", href: "#episodes", onclick: () => setTimeout(() => view.draw()) }, "clear"), count),
      el("datalist", { id: "tasks" }, [...view.byTask.keys()].slice(0, 2000).map((task) => el("option", { value: task }))),
      damaged(), table.element);
    page.classList.add("tall");
    draw();
    if (filter.text) searchTexts();
  };

  function listOf(name, filter, set) {
    const values = [...new Set(view.rows.map((row) => row[name]))].filter((value) => value !== "").sort();
    if (values.length < 2 && !filter[name]) return null;
    const label = { stop: "stop reason" }[name] ?? name;
    return el("label", {}, label, choice(name, [["", "all"], ...values.map((value) => [value, words(value)])], filter[name], (value) => set(name, value)));
  }

  function damaged() {
    const lines = view.streams.filter((stream) => stream.damaged);
    if (!lines.length) return null;
    return el("p", { class: "warning" }, lines.map((stream) => `${stream.name}: ${plural(stream.damaged, "entry").replace("entrys", "entries")} cannot be read. `));
  }
})();

/** A name of the record in words. */
const words = (name) => visible(name).replaceAll("_", " ");
