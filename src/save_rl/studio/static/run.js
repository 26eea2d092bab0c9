// One run: how far it is, curves of every metric, settings, tests, checkpoints, where it comes from.

import { address, duration, el, getJSON, notice, number } from "./app.js";
import { Chart, load } from "./chart.js";
import { listen } from "./stream.js";
import { AXES, metricName, metricsOf } from "./words.js";

const REFRESH = 2000; // milliseconds

export async function show(main, query) {
  const name = query.get("run") ?? "";
  const [told] = await Promise.all([getJSON("/api/run", { run: name }), load()]);
  document.title = `${name} · save_rl studio`;
  const state = el("span");
  const head = el("div");
  const curves = curveSection(name);
  const rest = el("div.stack");
  main.append(
    el("div.top", {},
      el("div.grow", {}, el("p.where", {}, el("a", { href: "/" }, "Runs"), " /"), el("h1", {}, name === "." ? "this folder" : name)),
      state, el("a.button", { href: address("/", { tick: name }) }, "Compare"),
      el("a.button.primary", { href: address("/episode", { run: name }) }, "Episodes")),
    head, curves.section, rest);
  let drawn = "";

  function fill(fresh) {
    state.replaceChildren(el(`span.chip.${fresh.line.state}`, {}, fresh.line.state));
    curves.section.classList.toggle("hidden", fresh.line.updated === null);
    head.replaceChildren(...factsOf(fresh));
    const parts = JSON.stringify([fresh.settings, fresh.evaluations, fresh.checkpoints, fresh.best, fresh.log]);
    if (parts === drawn) return; // what is open stays open
    drawn = parts;
    rest.replaceChildren(
      el("div.columns", {}, testSection(fresh.evaluations, fresh.path), checkpointSection(fresh)),
      el("div.columns", {}, settingSection(fresh.settings), provenanceSection(fresh)),
      ...(fresh.log ? [el("section.card", {}, el("details", { open: fresh.line.state === "failed" }, el("summary", {}, "End of job.log"), el("pre", {}, fresh.log)))] : []),
    );
  }

  fill(told);
  await curves.renew();
  let timer = null;
  listen(({ kind, data }) => {
    const lines = kind === "all" || kind === "change" ? data.runs : [];
    if (timer || !lines.some((line) => line.name === name)) return;
    timer = setTimeout(async () => {
      timer = null;
      try {
        fill(await getJSON("/api/run", { run: name }));
        await curves.renew();
      } catch { /* the next change brings another try */ }
    }, REFRESH);
  });
}

function factsOf({ line, training }) {
  const known = (value, say) => (value === null || value === undefined ? null : say(value));
  const facts = [
    ["Environment", line.env], ["Agent", line.label], ["Seeds", line.seeds?.join(", ")], ["Budget", line.budget],
    [line.unit === "steps" ? "Real steps" : "Episodes", known(line.done, (done) => (line.target ? `${number(done)} of ${number(line.target)}` : number(done)))],
    ["Reward", known(line.reward, number)], ["Test reward", known(line.test_reward, number)], ["Level", known(line.level, number)],
    ["Time", known(line.time_s, duration)], ["Real steps/s", known(line.steps_per_s, (x) => number(Math.round(x)))], ["Left", known(line.left_s, duration)],
  ].filter(([, value]) => value !== null && value !== undefined);
  return [
    line.problem ? notice(line.problem, line.state === "failed" || line.state === "broken" ? "error" : "warn") : "",
    training && line.state === "broken" ? notice("A process is training in this folder; it may be about to write the file.") : "",
    el("dl.facts", {}, facts.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, String(value))))),
  ];
}

function curveSection(name) {
  const choice = { x: "episodes", logX: false, range: true };
  const grid = el("div.grid");
  const still = el("p.soft.small");
  const charts = new Map();
  let last = null;
  let asked = 0;
  const axis = el("select", { id: "axis", onchange: () => { choice.x = axis.value; renew(); } },
    Object.entries(AXES).map(([key, text]) => el("option", { value: key }, text)));
  const box = (text, key) => el("label", {}, el("input", { type: "checkbox", id: key, checked: choice[key],
    onchange: (event) => { choice[key] = event.target.checked; renew(); } }), text);
  const section = el("section.card", {},
    el("div.top", {}, el("h2.grow", {}, "Curves"), el("div.controls", {}, el("label", {}, "Over", axis), box("log x", "logX"), box("range over seeds", "range"))),
    grid, still);

  async function renew() {
    const mine = (asked += 1);
    try {
      const columns = last?.columns.length ? last.columns : (await getJSON("/api/curves", { run: name })).columns;
      const got = await getJSON("/api/curves", { run: name, metric: metricsOf(columns), x: choice.x, log: choice.logX ? 1 : 0, points: 300 });
      if (mine !== asked) return; // another choice was made meanwhile
      last = got;
    } catch (error) {
      if (mine === asked) still.textContent = error.message;
      return;
    }
    const constant = [];
    for (const curve of last.curves) {
      const varies = curve.x.length > 0 && Math.min(...(curve.low ?? curve.median)) < Math.max(...(curve.high ?? curve.median));
      if (!varies) {
        if (curve.x.length) constant.push(`${metricName(curve.metric)} ${number(curve.median.at(-1))}`);
        continue;
      }
      if (!charts.has(curve.metric)) {
        const place = el("div");
        const value = el("span.soft.number");
        grid.append(el("div", { "data-metric": curve.metric }, el("h3", {}, metricName(curve.metric), " ", value), place));
        charts.set(curve.metric, { chart: new Chart(place), value });
      }
      const { chart, value } = charts.get(curve.metric);
      value.textContent = number(curve.median.at(-1));
      chart.draw([{ ...curve, key: curve.metric, label: metricName(curve.metric) }], {
        logX: choice.logX, range: choice.range, time: choice.x === "time_s", height: 170, legend: false, sync: "run",
      });
    }
    still.textContent = constant.length ? `Constant: ${constant.join(" · ")}` : "";
    if (!charts.size && !constant.length) still.textContent = "No values yet.";
  }
  return { section, renew };
}

function settingSection(settings) {
  const text = (value) => (value === null || value === undefined ? "auto" : typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? number(value, 6) : String(value));
  const table = (rows) => el("table.plain", {}, el("tbody", {}, rows.map((one) => el("tr", {},
    el("td.name.mono", {}, one.name), el("td", {}, text(one.value)),
    el("td.soft.small", {}, one.differs && one.known && !["env", "seeds"].includes(one.name) ? `default ${text(one.default)}` : "")))));
  const [changed, usual] = [settings.filter((one) => one.differs), settings.filter((one) => !one.differs)];
  return el("section.card", { id: "settings" }, el("h2", {}, "Settings"),
    changed.length ? table(changed) : el("p.soft", {}, "All have their defaults."),
    usual.length ? el("details", {}, el("summary", {}, `${usual.length} with their default`), table(usual)) : "");
}

function testSection(evaluations, path) {
  const section = el("section.card", { id: "tests" }, el("h2", {}, "Test rewards by budget"));
  const ends = evaluations.flatMap((test) => test.budgets.flatMap((b) => [b.mean - b.error, b.mean + b.error]));
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)]; // one scale for all
  for (const test of evaluations) {
    const place = (value) => `${(100 * (value - low)) / (high - low || 1)}%`;
    section.append(el("h3", {}, test.file), test.problem ? notice(test.problem, "warn") : el("table.plain", {},
      el("thead", {}, el("tr", {}, el("th", {}, "Budget"), el("th"), el("th.number", {}, "Reward"), el("th.number", {}, "Episodes"))),
      el("tbody", {}, test.budgets.map((b) => el("tr", {}, el("td", {}, String(b.budget)),
        el("td.meter", {}, el("div.track", {},
          el("i", { style: { left: place(Math.min(0, b.mean)), width: `${(100 * Math.abs(b.mean)) / (high - low || 1)}%` } }),
          el("u", { style: { left: place(b.mean - b.error), width: `${(200 * b.error) / (high - low || 1)}%` } }))),
        el("td.number", { title: `lowest ${number(b.min)}, highest ${number(b.max)}` }, `${number(b.mean)} ± ${number(b.error)}`),
        el("td.number.soft", {}, String(b.episodes)))))));
  }
  if (!evaluations.length) {
    section.append(el("p.soft", {}, "None yet; this makes them:"), el("pre", {}, `save-rl evaluate ${/^[\w./-]+$/.test(path) ? path : `'${path}'`}`));
  }
  return section;
}

function checkpointSection({ checkpoints, best }) {
  const size = (bytes) => (bytes === undefined ? "" : bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${number(bytes / 1e6, 1)} MB`);
  const row = (one) => el("tr", {},
    el("td", {}, one.folder === "best" ? "best" : String(one.number)),
    el("td.soft", {}, one.problem || [one.light ? "without replay" : "", one.scores ? `chunk ${one.number}` : "", Object.values(one.failed ?? {}).join("; ")].filter(Boolean).join(", ")),
    el("td.number", {}, one.time_s === null || one.time_s === undefined ? "" : duration(one.time_s)),
    el("td.number.soft", {}, size(one.bytes)));
  const all = [...best, ...checkpoints];
  return el("section.card", { id: "checkpoints" }, el("h2", {}, "Checkpoints"),
    all.length ? el("table.plain", {},
      el("thead", {}, el("tr", {}, el("th", {}, "Chunk"), el("th"), el("th.number", {}, "After"), el("th.number", {}, "Size"))),
      el("tbody", {}, all.map(row))) : el("p.soft", {}, "None yet."));
}

function provenanceSection({ run_id: id, device, versions, git_commit: commit, agent, files }) {
  const pairs = [
    ["Device", device], ["Git commit", commit], ["Run", id],
    ["Versions", Object.entries(versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", ")],
    ["Agent", agent?.summary], ["Files", files.join(", ")],
  ].filter(([, value]) => value);
  return el("section.card", { id: "provenance" }, el("h2", {}, "Provenance"),
    el("dl.pairs", {}, pairs.flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, String(value))])));
}
