// Episodes of a run: what to play, its progress, and the episodes that were played.
import { address, el, getJSON, notice, number, postJSON } from "./app.js";
import { cancel, follow, isOver, progressShare, progressText } from "./job.js";
import { Viewer } from "./viewer.js";

const FIELDS = ["checkpoint", "of", "seed", "level", "budget", "c", "most"];

export async function show(main, query) {
  const run = query.get("run");
  if (!run) throw new Error("Which run? Choose one on the page of all runs.");
  document.head.append(el("link", { rel: "stylesheet", href: "/static/episode.css" }));
  document.title = `Episodes of ${run}`;
  const about = await getJSON("/api/episodes", { run });
  main.append(el("div.top", {}, el("div.grow", {},
    el("h1", {}, "Episodes of ", el("a", { href: address("/run", { run }) }, run)),
    about.env ? el("p.where", {}, `${about.env} · ${about.agent}`) : null)));
  if (about.problem) {
    main.append(notice(about.problem, "error"));
    return;
  }
  new Page(main, run, about, query);
}

class Page {
  constructor(main, run, about, query) {
    Object.assign(this, { run, about, query, job: null });
    this.viewer = new Viewer(run, /puct/.test(about.agent) ? "prior" : "Qθ");
    this.status = el("div.job", { role: "status", "aria-live": "polite" });
    this.form = this.makeForm();
    this.played = el("div.played", { "aria-label": "played episodes" });
    this.empty = el("p.hint", {}, "Choose a seed and press Play: the server plays the episode here, and keeps every search.");
    main.append(el("section.card.setup", {}, this.form, this.played), this.empty, this.viewer.body);
    this.showPlayed(about.episodes);
    const wanted = about.episodes.find((e) => String(e.episode) === query.get("episode")) ?? about.episodes[0];
    if (wanted) this.open(wanted, Number(query.get("step")) || 0);
    const going = about.episodes.find((e) => e.job && !isOver(e.job));
    if (going) this.track(going.job, going.episode === wanted.episode).then(() => this.prepare(true));
    else this.prepare(Boolean(wanted));
  }

  // ---- what to play -------------------------------------------------------------------------

  makeForm() {
    const { about, query } = this;
    const known = (name, otherwise) => query.get(name) ?? otherwise;
    const field = (label, input, title) => el("label", { title }, el("span", {}, label), input);
    const whole = (name, value, min, max) => el("input", { name, type: "number", min, max, step: 1, value, required: true });
    const choose = (name, options, value) => el("select", { name },
      options.map(([key, text]) => el("option", { value: key, selected: String(key) === String(value) }, text)));
    this.levelField = field("Level", choose("level", [["", "any"]], ""), "of the environment's curriculum");
    this.levelField.hidden = true;
    const several = about.seeds.length > 1;
    this.button = el("button.primary", { type: "submit" }, "Play");
    return el("form.fields", { onsubmit: (event) => { event.preventDefault(); this.play(); } },
      field("Checkpoint", choose("checkpoint", about.checkpoints.map((x) => [x, x]), known("checkpoint", about.checkpoints[0])),
        "the last parameters, or the best where a run keeps them"),
      several && field("Run's seed", choose("of", about.seeds.map((x) => [x, x]), known("of", about.seeds[0])), "which of the agents that were trained side by side"),
      field("Seed", whole("seed", known("seed", 0), 0, 2 ** 31 - 1), "draws the start of the episode"),
      this.levelField,
      field("Budget", whole("budget", known("budget", about.budget), 0, 100000), "simulations per decision"),
      field("c", el("input", { name: "c", type: "number", min: 0, step: "any", value: known("c", about.c), required: true }), "weight of exploration in the search"),
      field("Most steps", whole("most", known("most", 500), 1, 10000), "longer episodes are stopped"),
      this.button, this.status);
  }

  settings() {
    const data = new FormData(this.form);
    const found = { run: this.run };
    for (const name of FIELDS) {
      const value = data.get(name);
      if (value === null || value === "") continue;
      found[name] = name === "checkpoint" ? value : Number(value);
    }
    return found;
  }

  /** Load the agent before it is needed, and find out about levels. quietly: say nothing about it. */
  async prepare(quietly = false) {
    try {
      const job = await follow(await postJSON("/api/episodes/open", { run: this.run }), (now) => {
        if (!this.job && !quietly) this.showJob(now);
      });
      if (!this.job && !quietly) this.showJob(job);
      if (job.state !== "done") return;
      const { levels } = job.result;
      if (levels > 0) {
        const select = this.levelField.querySelector("select");
        const options = Array.from({ length: levels }, (_, i) => el("option", { value: i }, String(i)));
        select.append(...options);
        select.value = this.query.get("level") ?? String(levels - 1);
        this.levelField.hidden = false;
      }
    } catch (error) {
      this.status.replaceChildren(notice(error.message, "error"));
    }
  }

  async play() {
    this.viewer.stop();
    this.button.disabled = true;
    try {
      await this.track(await postJSON("/api/episodes/play", this.settings()));
    } catch (error) {
      this.status.replaceChildren(notice(error.message, "error"));
      this.button.disabled = false;
    }
  }

  /** Follow the job that plays an episode, and show its steps as they come. opened: it is shown. */
  async track(started, opened = false) {
    this.button.disabled = true;
    this.job = started;
    let last = -1, busy = false, asked = 0;
    try {
      const refresh = async (now = false) => {
        if (busy || (!now && performance.now() - asked < 250)) return;
        busy = true;
        asked = performance.now();
        try {
          const found = await getJSON(`/api/episodes/${started.job}`);
          if (!opened && found.states > 0) { opened = true; await this.open(found, 0); }
          else if (opened && this.viewer.episode.episode === found.episode) this.viewer.extend(found);
        } finally { busy = false; }
      };
      const over = await follow(started, (job) => {
        this.showJob(job, "Playing");
        if (job.done !== last && job.done > 0) { last = job.done; refresh().catch(() => {}); }
      });
      while (busy) await new Promise((go) => setTimeout(go, 20));
      await refresh(true);
      this.job = null;
      this.showJob(over);
      this.showPlayed((await getJSON("/api/episodes", { run: this.run })).episodes);
    } catch (error) {
      this.status.replaceChildren(notice(error.message, "error"));
    } finally {
      this.job = null;
      this.button.disabled = false;
    }
  }

  /** Show a job's progress with a way to cancel it; nothing if it is done. */
  showJob(job, doing = "") {
    if (job.state === "done") { this.status.replaceChildren(); return; }
    if (isOver(job)) {
      const [first, ...rest] = (job.why || "Cancelled.").split("\n");
      const more = rest.length ? [el("pre", {}, rest.join("\n"))] : [];
      this.status.replaceChildren(notice(first, job.state === "failed" ? "error" : "info", ...more));
      return;
    }
    const share = progressShare(job);
    const bar = this.status.querySelector("progress") ?? el("progress", { max: 1 });
    if (share === null) bar.removeAttribute("value"); else bar.value = share;
    const text = this.status.querySelector(".text") ?? el("span.text");
    text.textContent = doing ? `${doing}: ${progressText(job)}` : progressText(job);
    if (!this.status.contains(bar)) {
      this.status.replaceChildren(bar, text, el("button.cancel", { type: "button", onclick: (event) => {
        event.target.disabled = true;
        cancel(this.current).catch((error) => this.status.append(notice(error.message, "error")));
      } }, "Cancel"));
    }
    this.current = job;
  }

  showPlayed(episodes) {
    const levelText = (s) => (s.level === null ? "" : ` · level ${s.level}`);
    this.played.replaceChildren(...episodes.map((e) => el("button.past", {
      type: "button", "data-episode": e.episode, onclick: () => this.open(e, 0),
      "aria-pressed": String(this.viewer.episode?.episode === e.episode),
    }, `seed ${e.settings.seed}${levelText(e.settings)} · budget ${e.settings.budget} · reward ${number(sum(e.rewards), 2)}`)));
  }

  async open(episode, step) {
    this.empty.hidden = true;
    for (const chip of this.played.children) {
      chip.setAttribute("aria-pressed", String(chip.dataset.episode === String(episode.episode)));
    }
    await this.viewer.open(episode, step);
  }
}

const sum = (list) => list.reduce((a, b) => a + b, 0);
