import { el } from "./app.js";

export async function show(main, query) {
  main.append(el("h1", {}, "experiment"));
}
