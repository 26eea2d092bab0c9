// All experiments of the folder, with their figures and verdicts.

import { address, el, getJSON } from "./app.js";
import { verdictCounts } from "./experiment.js";

export async function show(main) {
  const { folder, experiments } = await getJSON("/api/experiments");
  main.append(el("div.top", {}, el("div.grow", {}, el("h1", {}, "Experiments"), el("p.where", {}, folder))));
  if (!experiments.length) {
    main.append(el("section.card.empty", {}, el("h2", {}, "No experiments here yet"),
      el("p.soft", {}, "One that reproduces a figure of the paper in a few minutes:"),
      el("pre", {}, "save-rl reproduce tightrope-tabular")));
    return;
  }
  main.append(el("div.grid", {}, experiments.map((one) => el("a.card", { href: address("/experiment", { name: one.name }) },
    one.picture ? el("img.thumb", { src: address("/api/picture", { in: one.name, file: one.picture }), alt: "", loading: "lazy" }) : "",
    el("h2", {}, one.name === "." ? one.experiment : one.name),
    el("div.controls", {}, verdictCounts(one.verdicts)),
    one.problems.length ? el("p.soft.small", {}, one.problems.join(" ")) : ""))));
}
