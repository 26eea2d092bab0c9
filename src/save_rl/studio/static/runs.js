// All runs of the folder: a live table, sorted and filtered; ticked runs are compared.

import { address, duration, el, getJSON, notice, number, svg } from "./app.js";
import { comparePanel } from "./compare.js";
import { listen } from "./stream.js";

const STATES = ["training", "finished", "stopped", "failed", "broken"];
// Columns: heading, what to sort by, class.
const COLUMNS = [
  { key: "name", text: "Run", of: (run) => run.name, kind: "run" },
  { key: "state", text: "State", of: (run) => STATES.indexOf(run.state), kind: "state" },
  { key: "env", text: "Environment", of: (run) => run.env ?? "", kind: "env" },
  { key: "agent", text: "Agent", of: (run) => run.label ?? "", kind: "agent" },
  { key: "seeds", text: "Seeds", of: (run) => run.seeds?.length ?? 0, kind: "seeds number", down: true },
  { key: "progress", text: "Progress", of: (run) => (run.target ? (run.done ?? -1) / run.target : -1), kind: "progress", down: true },
  { key: "reward", text: "Reward", of: (run) => run.test_reward ?? run.reward ?? -Infinity, kind: "reward number", down: true },
  { key: "curve", text: "", kind: "curve" },
  { key: "speed", text: "Steps/s", of: (run) => run.steps_per_s ?? -1, kind: "speed number", down: true },
  { key: "updated", text: "Updated", of: (run) => run.updated ?? 0, kind: "updated number", down: true },
];

export async function show(main, query) {
  const runs = new Map();
  const rows = new Map();
  const ticked = new Set(query.getAll("tick"));
  const view = { sort: query.get("sort") ?? "updated", down: query.get("up") !== "1", filter: query.get("filter") ?? "", states: new Set(query.getAll("state")) };
  const kept = new Map();
  let compared = []; // ticked runs that are there
  let skew = 0; // seconds by which the server's clock is ahead of ours

  function remember(part) {
    for (const [name, value] of Object.entries(part)) kept.set(name, value);
    history.replaceState(null, "", address("/", {
      ...Object.fromEntries(kept), tick: [...ticked], filter: view.filter || null, state: [...view.states],
      sort: view.sort === "updated" ? null : view.sort, up: view.down ? null : 1,
    }));
  }
  for (const name of ["metric", "x", "logx", "logy", "smooth", "range", "together"]) kept.set(name, query.get(name));

  const where = el("p.where");
  const chips = el("div.controls", { role: "group", "aria-label": "States" });
  const filter = el("input", { type: "search", placeholder: "Filter runs  ( / )", "aria-label": "Filter runs", value: view.filter,
    oninput: () => { view.filter = filter.value; remember({}); arrange(); } });
  const sorter = el("select.phone", { "aria-label": "Sort by", onchange: () => sortBy(sorter.value) },
    COLUMNS.filter((c) => c.of).map((c) => el("option", { value: c.key, selected: c.key === view.sort }, `Sort: ${c.text}`)));
  const untick = el("button.hidden", { type: "button", onclick: () => { ticked.clear(); tickedChanged(); } }, "Untick all");
  const everyone = el("input", { type: "checkbox", "aria-label": "Tick all shown runs", onchange: () => {
    for (const run of visible()) { if (everyone.checked) ticked.add(run.name); else ticked.delete(run.name); }
    tickedChanged();
  } });
  const head = el("tr", {}, el("th.tick", {}, everyone), COLUMNS.map((column) => {
    const cell = el(`th.${column.kind.replace(" ", ".")}`, { scope: "col", "data-key": column.key });
    if (column.of) cell.append(el("button", { type: "button", onclick: () => sortBy(column.key) }, column.text));
    return cell;
  }));
  const body = el("tbody");
  const table = el("section.card.runs", {}, el("div.scroll", {}, el("table", {}, el("thead", {}, head), body)));
  const nothing = el("div");
  const compare = comparePanel(query, { remember, coloured });
  main.append(
    el("div.top", {}, el("div.grow", {}, el("h1", {}, "Runs"), where), chips, sorter, filter, untick),
    nothing, compare.panel, table,
  );

  function visible() {
    const words = view.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const { of } = COLUMNS.find((c) => c.key === view.sort && c.of) ?? COLUMNS[0];
    const order = view.down ? -1 : 1;
    return [...runs.values()]
      .filter((run) => !view.states.size || view.states.has(run.state))
      .filter((run) => {
        const text = [run.name, run.env, run.agent, run.label, run.state].join(" ").toLowerCase();
        return words.every((word) => text.includes(word));
      })
      .sort((a, b) => {
        const [x, y] = [of(a), of(b)];
        const by = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
        return by * order || a.name.localeCompare(b.name, "en", { numeric: true });
      });
  }

  function sortBy(key) {
    const column = COLUMNS.find((c) => c.key === key);
    view.down = view.sort === key ? !view.down : Boolean(column.down);
    view.sort = key;
    remember({});
    arrange();
  }

  function tickedChanged() {
    remember({});
    for (const [name, row] of rows) mark(name, row);
    untick.classList.toggle("hidden", ticked.size === 0);
    markEveryone(visible());
    compared = comparable();
    compare.show(compared);
  }

  const comparable = () => [...ticked].filter((name) => runs.has(name));

  function markEveryone(shown) {
    const count = shown.filter((run) => ticked.has(run.name)).length;
    everyone.checked = count > 0 && count === shown.length;
    everyone.indeterminate = count > 0 && count < shown.length;
  }

  function mark(name, row) {
    row.classList.toggle("ticked", ticked.has(name));
    row.querySelector(".tick input").checked = ticked.has(name);
  }

  function coloured(colourOf) {
    for (const [name, row] of rows) {
      const colour = colourOf.get(name);
      if (colour) row.style.setProperty("--curve", colour);
      else row.style.removeProperty("--curve");
    }
  }

  function makeRow(run) {
    const row = el("tr", { "data-run": run.name });
    const tick = el("input", { type: "checkbox", "aria-label": `Compare ${run.name}`, onchange: () => {
      if (tick.checked) ticked.add(run.name); else ticked.delete(run.name);
      tickedChanged();
    } });
    row.append(el("td.tick", {}, tick), ...COLUMNS.map((c) => el(`td.${c.kind.replace(" ", ".")}`)));
    const title = run.name === "." ? "this folder" : run.name;
    row.children[1].append(el("a", { href: address("/run", { run: run.name }) }, title)); // keeps its focus
    return row;
  }

  function fill(row, run) {
    const colour = row.style.getPropertyValue("--curve");
    row.className = run.state;
    const [, name, state, env, agent, seeds, progress, reward, curve, speed] = row.children;
    name.querySelector(".problem")?.remove();
    if (run.problem) name.append(el("div.problem", { title: run.problem }, run.problem));
    state.replaceChildren(el(`span.chip.${run.state}`, {}, run.state));
    env.textContent = run.env ?? "";
    agent.textContent = run.label ?? "";
    agent.title = run.agent ?? "";
    seeds.textContent = run.seeds ? run.seeds.length : "";
    seeds.title = run.seeds ? `Seeds ${run.seeds.join(", ")}` : "";
    progress.replaceChildren(...progressOf(run));
    const value = run.test_reward ?? run.reward;
    reward.textContent = value === undefined || value === null ? "" : number(value);
    reward.title = run.test_reward === null || run.test_reward === undefined ? "of training episodes" : `of test episodes; training ${number(run.reward)}`;
    curve.replaceChildren(spark(run.spark ?? []));
    speed.textContent = run.steps_per_s ? number(Math.round(run.steps_per_s)) : "";
    if (colour) row.style.setProperty("--curve", colour);
    mark(run.name, row);
    age(row, run);
  }

  function age(row, run) {
    const cell = row.lastElementChild;
    const seconds = run.updated ? Date.now() / 1000 + skew - run.updated : null;
    const text = seconds === null ? "" : seconds < 5 ? "now" : `${duration(seconds < 60 ? seconds : seconds - (seconds % 60))} ago`;
    if (cell.textContent !== text) cell.textContent = text;
  }

  function arrange() {
    const order = visible();
    const shown = order.map((run) => rows.get(run.name));
    const current = [...body.children];
    if (shown.length !== current.length || shown.some((row, i) => row !== current[i])) {
      const focused = document.activeElement;
      body.replaceChildren(...shown);
      if (focused && body.contains(focused)) focused.focus({ preventScroll: true });
    }
    for (const cell of head.children) {
      if (cell.dataset.key === view.sort) cell.setAttribute("aria-sort", view.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    markEveryone(order);
    const counts = Object.fromEntries(STATES.map((s) => [s, [...runs.values()].filter((run) => run.state === s).length]));
    const told = JSON.stringify([counts, [...view.states]]);
    if (told !== chips.dataset.told) { // else they would lose the focus
      chips.dataset.told = told;
      const active = document.activeElement?.dataset.state;
      chips.replaceChildren(...STATES.filter((s) => counts[s] || view.states.has(s)).map((s) => el(`button.chip.${s}`, {
        type: "button", "data-state": s, "aria-pressed": String(view.states.has(s)),
        onclick: () => { if (!view.states.delete(s)) view.states.add(s); remember({}); arrange(); },
      }, `${counts[s]} ${s}`)));
      if (active) chips.querySelector(`[data-state="${active}"]`)?.focus();
    }
    table.classList.toggle("hidden", runs.size === 0);
    filter.classList.toggle("hidden", runs.size === 0);
    nothing.replaceChildren(...(runs.size ? order.length ? [] : [notice("No run matches this filter.")] : [firstRun()]));
  }

  function hear({ kind, data }) {
    if (kind !== "all" && kind !== "change") return;
    const changed = data.runs.filter((run) => JSON.stringify(run) !== JSON.stringify(runs.get(run.name)));
    const names = new Set(data.runs.map((run) => run.name));
    const gone = kind === "all" ? [...runs.keys()].filter((name) => !names.has(name)) : data.gone;
    if (kind === "all") {
      where.textContent = data.folder + (data.cut ? " — too many folders to look at all of them; open one further down" : "");
      skew = data.now - Date.now() / 1000;
    }
    for (const name of gone) { runs.delete(name); rows.delete(name); ticked.delete(name); }
    for (const run of changed) {
      runs.set(run.name, run);
      if (!rows.has(run.name)) rows.set(run.name, makeRow(run));
      fill(rows.get(run.name), run);
    }
    if (changed.length || gone.length || kind === "all") arrange();
    if (comparable().join("\n") !== compared.join("\n")) tickedChanged(); // one is gone, or there at last
    compare.renew(changed.map((run) => run.name));
  }

  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) {
      event.preventDefault();
      filter.focus();
    }
  });
  setInterval(() => { for (const [name, row] of rows) age(row, runs.get(name)); }, 5000);
  hear({ kind: "all", data: await getJSON("/api/runs") });
  listen(hear);
}

function firstRun() {
  return el("section.card.empty", {},
    el("h2", {}, "No runs here yet"),
    el("p.soft", {}, "A first one takes a few seconds; it appears here by itself:"),
    el("pre", {}, "save-rl train tightrope --episodes 3000"),
    el("p.soft.small", {}, "Runs go into the folder runs/; give save-rl studio another folder if yours are elsewhere."));
}

function progressOf(run) {
  if (run.done === undefined) return [];
  const part = run.target ? Math.min(run.done / run.target, 1) : 0;
  const bar = el("i", { style: { width: `${100 * part}%` } });
  const right = run.left_s !== null && run.left_s !== undefined ? `${duration(run.left_s)} left` : `${Math.floor(100 * part)} %`;
  return [
    el("small", {}, el("span", {}, run.target ? `${number(run.done)} / ${short(run.target)} ${run.unit}` : `${number(run.done)} ${run.unit}`), el("span", {}, run.target ? right : "")),
    el("div.bar", { role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.floor(100 * part), "aria-label": "Progress" }, bar),
  ];
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const short = (x) => (x >= 10000 ? compact.format(x) : number(x));

/** The way of the reward so far, without axes. */
function spark(values) {
  if (values.length < 2) return "";
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [width, height] = [96, 24];
  const place = (value, i) => `${((i / (values.length - 1)) * width).toFixed(1)},${(height - 2 - ((value - low) / (high - low || 1)) * (height - 4)).toFixed(1)}`;
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, svg("path", { d: `M${values.map(place).join("L")}` }));
}
