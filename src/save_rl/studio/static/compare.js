// The curves of the ticked runs, overlaid.

import { el, getJSON, notice } from "./app.js";
import { Chart, Colours, legible, load } from "./chart.js";
import { AXES, metricName, metricsOf } from "./words.js";

const REFRESH = 2000; // milliseconds between two looks at the curves of runs that train

/** The panel as an element, with `show(names)` for the ticked runs, `renew(names)` when some of them
 *  changed. `coloured(name → colour)` is called when colours are given. */
export function comparePanel(query, { remember, coloured }) {
  const choice = {
    metric: query.get("metric") ?? "return_mean",
    x: query.get("x") in AXES ? query.get("x") : "episodes",
    logX: query.get("logx") === "1",
    logY: query.get("logy") === "1",
    smoothing: Math.min(Math.max(Number(query.get("smooth")) || 0, 0), 0.98),
    range: query.get("range") !== "0",
    together: query.get("together") === "1",
  };
  let names = [];
  let asked = 0;
  let timer = null;
  let last = null;
  let looked = 0;
  const colours = new Colours();
  const metric = el("select", { id: "metric", onchange: () => change({ metric: metric.value }, true) });
  const axis = el("select", { id: "axis", onchange: () => change({ x: axis.value }, true) },
    Object.entries(AXES).map(([name, text]) => el("option", { value: name, selected: name === choice.x }, text)));
  const box = (text, key, ask, title) => el("label", { title },
    el("input", { type: "checkbox", id: key, checked: choice[key], onchange: (event) => change({ [key]: event.target.checked }, ask) }), text);
  const slider = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: choice.smoothing, id: "smoothing",
    oninput: () => change({ smoothing: Number(slider.value) }, false) });
  const picture = el("div");
  const said = el("div");
  const heading = el("h2");
  const title = () => `${metricName(choice.metric)} by ${AXES[choice.x].toLowerCase()}`;
  const file = () => `${choice.metric}-by-${choice.x}`;
  const chart = new Chart(picture);
  const panel = el("section.card.hidden", { "aria-label": "Curves of the ticked runs" },
    el("div.top", {}, el("div.grow", {}, heading),
      el("button", { type: "button", onclick: () => chart.png(file(), title()) }, "PNG"),
      el("button", { type: "button", onclick: () => chart.csv(file(), choice.x, choice.metric) }, "CSV")),
    el("div.controls", {},
      el("label", {}, "Metric", metric),
      el("label", {}, "Over", axis),
      box("log x", "logX", true), box("log y", "logY", false),
      box("range over seeds", "range", false, "Shade between the lowest and the highest seed"),
      box("merge equal runs", "together", true, "One curve for all runs that differ only in their seeds"),
      el("label", {}, "Smoothing", slider)),
    said, picture);

  function change(part, ask) {
    Object.assign(choice, part);
    remember({
      metric: choice.metric, x: choice.x, logx: choice.logX ? 1 : null, logy: choice.logY ? 1 : null,
      smooth: choice.smoothing || null, range: choice.range ? null : 0, together: choice.together ? 1 : null,
    });
    if (ask) fetchCurves();
    else draw();
  }

  async function fetchCurves() {
    clearTimeout(timer);
    timer = null;
    if (!names.length) return;
    const mine = (asked += 1);
    looked = performance.now();
    try {
      await load();
      const got = await getJSON("/api/curves", {
        run: names, metric: choice.metric, x: choice.x, log: choice.logX ? 1 : 0, together: choice.together ? 1 : 0,
      });
      if (mine !== asked) return;
      last = got;
      draw();
    } catch (error) {
      if (mine === asked) said.replaceChildren(notice(error.message, "error"));
    }
  }

  function draw() {
    if (!last || !names.length) return;
    const listed = metricsOf([...new Set([...last.columns, choice.metric])]);
    if (listed.join() !== [...metric.options].map((option) => option.value).join()) { // it may be open
      metric.replaceChildren(...listed.map((name) => el("option", { value: name }, metricName(name))));
    }
    metric.value = choice.metric;
    const looks = colours.of(last.curves.map((c) => [c.runs.join("\n"), c.colour]));
    const colourOf = new Map();
    const curves = last.curves.map((c) => {
      const key = c.runs.join("\n");
      for (const run of c.runs) colourOf.set(run, legible(looks.get(key).colour));
      const what = c.runs.length > 1 ? `${c.label} · ${c.env}` : c.runs[0] === "." ? `${c.label} · ${c.env}` : c.runs[0];
      const seeds = c.seeds > 1 ? ` (${c.seeds} seeds)` : "";
      return { ...c, ...looks.get(key), key, label: what + seeds, title: c.runs.join(", ") };
    });
    coloured(colourOf);
    heading.textContent = title();
    const problems = Object.entries(last.problems).map(([run, why]) => notice(`${run}: ${why}`, "warn"));
    said.replaceChildren(...problems);
    chart.draw(curves, {
      logX: choice.logX, logY: choice.logY, range: choice.range, time: choice.x === "time_s",
      smoothing: choice.smoothing, xLabel: AXES[choice.x], height: innerWidth < 760 ? 240 : 340,
      empty: "These runs have no values of this metric yet.",
    });
  }

  return {
    panel,
    show(ticked) {
      names = ticked;
      panel.classList.toggle("hidden", !names.length);
      if (names.length) fetchCurves();
      else coloured(new Map());
    },
    renew(changed) {
      if (timer || !changed.some((name) => names.includes(name))) return;
      timer = setTimeout(fetchCurves, Math.max(0, REFRESH - (performance.now() - looked)));
    },
  };
}
