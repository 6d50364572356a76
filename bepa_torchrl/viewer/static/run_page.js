// Runs: the table of results, and curves of every method overlaid.
"use strict";

(() => {
  const WINDOW = 5;  // iterations of a moving average
  const PANELS = [
    ["success of the rollouts", ["collect/success"], true],
    ["success on training tasks", ["eval/train"], true],
    ["success on held-out tasks", ["eval/held_out"], true],
    ["success on expert-only tasks", ["eval/expert_only"], true],
    ["entropy, nats per token", ["collect/entropy"]],
    ["log-prob, on-policy rows", ["train/log_prob_on_policy_rows_with_signal"]],
    ["log-prob, off-policy rows", ["train/log_prob_off_policy_rows_with_signal"]],
    ["log-prob of the rollouts' successes", ["collect/log_prob_success"]],
    ["optimiser steps", ["total/optimizer_steps"]],
    ["groups whose failure was replaced", ["cache/injected"]],
    ["tasks in the cache", ["cache/tasks"]],
    ["Jensen-Shannon divergence of cached traces, nats", ["cache/js"]],
    ["tail mass of cached traces", ["cache/tail"]],
    ["infrastructure failures by type", /^collect\/failed_|^collect\/stop_(env_error|crashed_desktop)$/],
  ];
  // distinguishable without red and green, on light and dark
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#999933"];
  const hidden = new Set();  // series that were switched off
  const zooms = new Map();  // title of a panel → the ranges of axes that were chosen in it, as Plotly names them
  let averaged = false;
  let plotly = null;

  view.pages.run = async (page, parameters) => {
    const legend = el("div", { class: "bar" });
    const panels = el("div", { class: "panels" });
    page.replaceChildren(el("section", {}, view.runs.map(summary)), results(), legend, panels);
    if (!view.runs.some((run) => run.methods.length)) {
      legend.append(el("p", { class: "hint" }, "There is no training in these folders; see the ", el("a", { href: "#episodes" }, "episodes"), "."));
      return;
    }
    const [metrics] = await Promise.all([view.loadMetrics(), (plotly ??= view.script("plotly.min.js"))]);
    if (!page.isConnected) return;
    const series = view.runs.flatMap((run) => run.methods.map((method) => ({
      name: view.runs.length > 1 ? `${run.name} ${method}` : method, run: run.name, method, columns: metrics[run.name]?.[method] ?? {}, final: run.results[method]?.success?.sampled ?? {},
    })));
    series.forEach((each, index) => { each.colour = COLOURS[index % COLOURS.length]; });
    const extra = (parameters.metrics ?? "").split(",").filter(Boolean);
    const draw = () => drawPanels(panels, series, [...extra.map((key) => [key, [key]]), ...PANELS]);
    legend.replaceChildren(...legendOf(series, draw), averages(draw), metricList(series, extra));
    draw();
    matchMedia("(prefers-color-scheme: dark)").onchange = draw;
  };

  function summary(run) {
    const episodes = view.rows.filter((row) => row.run === run.name);
    return el("p", {}, el("strong", {}, run.name), " ", run.state ? el("span", { class: `badge ${run.state}` }, run.state) : null,
      ` ${plural(episodes.length, "recorded episode")}: `,
      el("a", { href: address("episodes", { run: run.name }) }, "all"), ", ",
      el("a", { href: address("episodes", { run: run.name, outcome: "success" }) }, "successes"), ", ",
      el("a", { href: address("cache", { run: run.name }) }, "cache"), ". ", el("span", { class: "hint" }, run.folder));
  }

  /** Success by set after training, sampled and greedy, and of the base policy. */
  function results() {
    const lines = view.runs.flatMap((run) => [
      ...Object.entries(run.base ?? {}).map(([mode, sets]) => [run.name, "base policy", mode, sets]),
      ...Object.entries(run.results).flatMap(([method, result]) => Object.entries(result.success ?? {}).map(([mode, sets]) => [run.name, method, mode, sets])),
    ]);
    if (!lines.length) return el("p", { class: "hint" }, view.runs.some((run) => run.state) ? "No final results yet." : "");
    const sets = [...new Set(lines.flatMap(([, , , rates]) => Object.keys(rates)))];
    const head = ["method", "mode", ...sets.map((set) => words(set))];
    if (view.runs.length > 1) head.unshift("run");
    return tableOf(head, lines.map(([run, method, mode, rates]) => [...(view.runs.length > 1 ? [run] : []), method, mode, ...sets.map((set) => percent(rates[set]))]));
  }

  function legendOf(series, draw) {
    return series.map((each) => el("label", {}, el("input", { type: "checkbox", checked: !hidden.has(each.name), onchange: (event) => {
      if (event.target.checked) hidden.delete(each.name); else hidden.add(each.name);
      draw();
    } }), el("span", { class: "swatch", style: `background: ${each.colour}` }), each.name));
  }

  function averages(draw) {
    return el("label", {}, el("input", { type: "checkbox", checked: averaged, onchange: (event) => { averaged = event.target.checked; draw(); } }), `mean of ${WINDOW}`);
  }

  /** A list of all metrics; a chosen one gets a panel of its own. */
  function metricList(series, extra) {
    const keys = [...new Set(series.flatMap((each) => Object.keys(each.columns)))].filter((key) => !["iteration", "phase", "reported_at"].includes(key)).sort();
    return choice("metric", [["", "another metric…"], ...keys.map((key) => [key, key])], "", (key) => {
      location.hash = address("run", { metrics: [...new Set([key, ...extra])].filter(Boolean).join(",") });
    });
  }

  function drawPanels(panels, series, wanted) {
    const shownSeries = series.filter((each) => !hidden.has(each.name));
    const filled = wanted.map(([title, keys, share]) => [title, curves(shownSeries, keys), share]).filter(([, traces]) => traces.length);
    panels.replaceChildren(...filled.map(([title, traces, share]) => {
      const plot = el("div", { class: "plot" });
      // drawn when the rest of the page is there
      requestAnimationFrame(() => { if (plot.isConnected) drawPlot(plot, traces, title, share); });
      return plot;
    }));
  }

  /** Draws a panel, zoomed as it was before; a double click leads back to all of it. */
  async function drawPlot(plot, traces, title, share) {
    await window.Plotly.newPlot(plot, traces, layout(plot, title, share), { displaylogo: false, responsive: true });
    if (!plot.isConnected) return;
    if (zooms.has(title)) await window.Plotly.relayout(plot, zooms.get(title));
    plot.on("plotly_relayout", (change) => {
      const zoom = { ...zooms.get(title) };
      for (const axis of ["xaxis", "yaxis"]) {
        if (change[`${axis}.autorange`]) delete zoom[`${axis}.range`];
        else if (Object.keys(change).some((key) => key.startsWith(`${axis}.range`))) zoom[`${axis}.range`] = [...plot.layout[axis].range];
      }
      zooms.set(title, zoom);
    });
  }

  function curves(series, keys) {
    return series.flatMap((each) => {
      const names = Array.isArray(keys) ? keys : Object.keys(each.columns).filter((key) => keys.test(key) && each.columns[key].some(Boolean));
      return names.filter((key) => each.columns[key]).map((key, index) => {
        const points = each.columns[key].map((value, line) => [each.columns.iteration[line], value]).filter(([, value]) => value !== null);
        const final = key.startsWith("eval/") ? each.final[key.slice("eval/".length)] : undefined;
        if (final !== undefined) points.push([Math.max(...each.columns.iteration), final]);
        const values = points.map(([, value]) => value);
        return {
          x: points.map(([iteration]) => iteration), y: averaged && !key.startsWith("eval/") ? means(values) : values,
          name: Array.isArray(keys) ? each.name : `${each.name} ${words(key.replace(/^collect\/(failed_|stop_)/, ""))}`,
          mode: key.startsWith("eval/") || points.length < 3 ? "lines+markers" : "lines", showlegend: !Array.isArray(keys),
          line: { color: each.colour, width: 2, dash: ["solid", "dot", "dash", "dashdot"][index % 4] },
        };
      });
    }).filter((trace) => trace.x.length);
  }

  function means(values) {
    return values.map((_, index) => {
      const part = values.slice(Math.max(0, index + 1 - WINDOW), index + 1);
      return part.reduce((sum, value) => sum + value, 0) / part.length;
    });
  }

  function layout(plot, title, share) {
    const style = getComputedStyle(document.body);
    const ink = style.color;
    const grid = { gridcolor: getComputedStyle(plot).borderTopColor, zerolinecolor: getComputedStyle(plot).borderTopColor };
    return {
      title: { text: title, font: { size: 13 } }, height: 240, margin: { l: 48, r: 12, t: 34, b: 34 }, hovermode: "x unified",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: style.fontFamily, size: 12 },
      hoverlabel: { bgcolor: style.backgroundColor, font: { color: ink } },
      xaxis: { title: { text: "iteration", standoff: 4, font: { size: 11 } }, ...grid }, yaxis: { rangemode: "tozero", ...(share ? { range: [0, 1.05] } : {}), ...grid },
      legend: { font: { size: 10 }, orientation: "h", y: -0.3 },
    };
  }
})();
