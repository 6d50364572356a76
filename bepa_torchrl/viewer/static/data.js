// The data: scripts of the folder data/, which call view.received. Pages on disk may not fetch files, but may load
// scripts. Episodes with their steps are in chunks, of which the last few that were shown are kept.
"use strict";

const view = {
  rows: [],       // one object per episode of the table
  runs: [],
  streams: [],
  pages: {},      // name → function(element, parameters), filled by the scripts of the pages
  version: 0,     // of the data; grows while a run is followed
};

(() => {
  const KEPT_CHUNKS = 8;
  const waiting = new Map();  // name → {resolve, reject}
  const chunks = new Map();   // name → promise, the least recently used first
  const texts = new Map();    // name → promise

  view.received = (name, data) => {
    waiting.get(name)?.resolve(data);
    waiting.delete(name);
  };

  /** The data of one script. */
  view.load = (name) => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    waiting.set(name, { resolve, reject });
    script.src = `data/${name}.js${location.protocol === "file:" ? "" : `?${view.version}`}`;
    script.onload = () => script.remove();
    script.onerror = () => { waiting.delete(name); reject(new Error(`data/${name}.js cannot be read`)); };
    document.head.append(script);
  });

  /** A script of a library. */
  view.script = (source) => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = source;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${source} cannot be read`));
    document.head.append(script);
  });

  /** Loads the table of episodes: view.rows, view.runs, view.streams. */
  view.loadIndex = async () => {
    const index = await view.load("index");
    view.runs = index.runs;
    view.streams = index.streams;
    view.rows = index.streams.flatMap((stream) => rowsOf(stream, index.texts));
    view.byId = new Map(view.rows.map((row) => [row.id, row]));
    view.byTask = Map.groupBy ? Map.groupBy(view.rows, (row) => row.task) : grouped(view.rows);
    chunks.clear();
    texts.clear();
    view.metrics = null;
  };

  function grouped(rows) {
    const groups = new Map();
    for (const row of rows) groups.set(row.task, [...(groups.get(row.task) ?? []), row]);
    return groups;
  }

  const TEXTS = ["task", "instruction", "source", "outcome", "stop", "mode", "expert"];

  function rowsOf(stream, texts) {
    const names = Object.keys(stream.columns);
    const rows = [];
    for (let number = 0; number < stream.columns.task.length; number++) {
      const row = { id: `${stream.name}:${number}`, number, stream, run: stream.run, method: stream.method, part: stream.part };
      for (const name of names) row[name] = stream.columns[name][number];
      for (const name of TEXTS) row[name] = texts[row[name]];
      row.words = `${row.task} ${row.instruction} ${row.expert}`.toLowerCase();
      rows.push(row);
    }
    return rows;
  }

  /** [number of the chunk, place in it] of an episode. */
  function place(row) {
    const starts = row.stream.chunks;
    let chunk = starts.length - 1;
    while (starts[chunk] > row.number) chunk--;
    return [chunk, row.number - starts[chunk]];
  }

  /** An episode with its steps. */
  view.episode = async (row) => {
    const [chunk, index] = place(row);
    const name = `${row.stream.number}-${chunk}`;
    const loading = chunks.get(name) ?? view.load(name);
    chunks.delete(name);
    chunks.set(name, loading);
    if (chunks.size > KEPT_CHUNKS) chunks.delete(chunks.keys().next().value);
    return { row, ...(await loading)[index] };
  };

  /** Loads the texts of all episodes into row.text, for the search; calls progress(done, all). */
  view.loadTexts = async (progress) => {
    const parts = view.streams.flatMap((stream) => stream.chunks.map((first, chunk) => [stream, first, chunk]));
    let done = 0;
    for (const [stream, first, chunk] of parts) {
      const name = `${stream.number}-${chunk}-text`;
      if (!texts.has(name)) texts.set(name, view.load(name).then((loaded) => give(stream, first, loaded)));
      await texts.get(name);
      progress(++done, parts.length);
    }
  };

  function give(stream, first, loaded) {
    loaded.forEach((text, index) => {
      const row = view.byId.get(`${stream.name}:${first + index}`);
      if (row) row.text = text;
    });
  }

  /** The metrics of every run, method and iteration. */
  view.loadMetrics = () => (view.metrics ??= view.load("metrics"));
  view.loadPlans = () => view.load("plans");
})();
