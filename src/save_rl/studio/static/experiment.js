// One experiment: its figure, the paper's claims with verdicts, its runs.

import { address, duration, el, getJSON, notice, number } from "./app.js";

const KINDS = { holds: "good", "does not hold": "bad", "too small to tell": "unsure" };
const MANY = { holds: "hold", "does not hold": "do not hold" };

export const verdictChip = (verdict, text = verdict) => el(`span.chip.${KINDS[verdict] ?? "unsure"}`, {}, text);

/** Chips with the numbers of claims by verdict. */
export const verdictCounts = (counts) => Object.keys(KINDS).filter((verdict) => counts[verdict])
  .map((verdict) => verdictChip(verdict, `${counts[verdict]} ${counts[verdict] > 1 ? MANY[verdict] ?? verdict : verdict}`));

const p = (value) => (value === null || value === undefined ? "" : value < 1e-4 ? "< 0.0001" : number(value, 4));

export async function show(main, query) {
  const name = query.get("name") ?? "";
  const one = await getJSON("/api/experiment", { name });
  const lines = new Map((await getJSON("/api/runs")).runs.map((run) => [run.name, run]));
  document.title = `${name} · save_rl studio`;
  const picture = (file) => el("img.figure", { src: address("/api/picture", { in: name, file }), alt: `${file} of ${name}`, loading: "lazy" });
  const from = one.provenance;
  main.append(
    el("div.top", {}, el("div.grow", {}, el("p.where", {}, el("a", { href: "/experiments" }, "Experiments"), " /"),
      el("h1", {}, name === "." ? one.experiment : name)),
    one.runs.length ? el("a.button", { href: address("/", { tick: one.runs.slice(0, 100), together: 1 }) }, "Compare its runs") : ""),
    ...one.problems.map((problem) => notice(problem, "warn")),
    el("section.card", { id: "claims" }, el("h2", {}, "Claims"), one.claims.length ? claimTable(one.claims) : el("p.soft", {}, "None are recorded yet.")),
    ...(one.pictures.length ? [el("section.card", {}, el("h2", {}, "Figure"), picture(one.pictures[0]))] : []),
    el("div.columns", {},
      el("section.card", {}, el("h2", {}, "Axes"), pairs(Object.entries(one.axes ?? {}))),
      el("section.card", {}, el("h2", {}, "Provenance"), pairs([
        ["Command", from.command], ["Device", from.device], ["CPU", from.cpu && `${from.cpu}, ${from.cores} cores`],
        ["Python", from.python], ["Time", from.wall_time_s && duration(from.wall_time_s)],
        ["Results", one.numbers === undefined ? "" : `${number(one.numbers)} numbers: ${one.metrics.join(", ")}`]]))),
    ...(one.runs.length ? [runTable(one.runs, lines, name)] : []),
    ...one.pictures.slice(1).map((file) => el("section.card", {}, el("h2", {}, file), picture(file))),
  );
}

function claimTable(claims) {
  return el("div.scroll", {}, el("table.plain.claims", {},
    el("thead", {}, el("tr", {}, ["Verdict", "Claim", "Measured"].map((text) => el("th", {}, text)), el("th.number", {}, "Seeds"), el("th.number", {}, "p"))),
    el("tbody", {}, claims.map((claim) => el("tr", {},
      el("td", {}, verdictChip(claim.verdict)),
      el("td", {}, String(claim.claim ?? ""), el("div.soft.small", {}, String(claim.where ?? ""))),
      el("td", {}, String(claim.measured ?? ""), claim.note ? el("div.soft.small", {}, String(claim.note)) : ""),
      el("td.number", { "data-name": "seeds" }, String(claim.seeds ?? "")),
      el("td.number", { "data-name": "p" }, typeof claim.p_value === "number" ? p(claim.p_value) : ""))))));
}

function runTable(runs, lines, name) {
  const inside = name === "." ? 0 : name.length + 1;
  return el("section.card", { id: "runs" }, el("h2", {}, `${runs.length} runs`), el("div.scroll", {}, el("table.plain", {}, el("tbody", {}, runs.map((run) => {
    const line = lines.get(run) ?? {};
    return el("tr", {}, el("td", {}, el("a", { href: address("/run", { run }) }, run.slice(inside))),
      el("td", {}, line.label ?? ""), el("td.number", {}, number(line.test_reward ?? line.reward)),
      el("td.number", {}, el(`span.chip.${line.state ?? "broken"}`, {}, line.state ?? "gone")));
  })))));
}

const pairs = (list) => el("dl.pairs", {}, list.filter(([, value]) => value !== null && value !== undefined && value !== "")
  .flatMap(([term, value]) => [el("dt", {}, term.replaceAll("_", " ")), el("dd", {}, Array.isArray(value) ? value.join(", ") : typeof value === "number" ? number(value) : typeof value === "object" ? JSON.stringify(value) : String(value))]));
