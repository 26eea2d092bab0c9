// An episode, step by step: the state, the rewards, the search behind every decision, its tree.
import { address, el, getJSON, notice, number, postJSON, svg } from "./app.js";
import { drawActions } from "./bars.js";
import { cancel, follow, isOver, progressShare, progressText } from "./job.js";
import { drawTree } from "./tree.js";

// Icons of the buttons, 16 × 16.
const ICONS = {
  first: "M3 3h2v10H3z M13 3v10L6 8z", back: "M11 3v10L4 8z", on: "M5 3v10l7-5z",
  play: "M4 2.5v11l9-5.5z", pause: "M4 3h3v10H4z M9 3h3v10H9z",
};
const icon = (name) => svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

const KEPT = 64; // steps; the tree of a large search has some hundred kilobytes

/** prior: what the agent's network gives, in a word. `body` is the element to show. */
export class Viewer {
  constructor(run, prior) {
    Object.assign(this, { run, prior, episode: null, at: 0, again: null, steps: new Map(), playing: null });
    this.body = el("div.episode", { hidden: true });
    this.make();
    addEventListener("keydown", (event) => this.key(event));
  }

  make() {
    this.image = el("img", { alt: "the state", onload: () => coarse(this.image) });
    this.text = el("pre.state");
    this.caption = el("figcaption");
    this.figure = el("figure.picture", {}, el("div.stage", {}, this.image, this.text), this.caption);
    const button = (text, label, onclick) => el("button", { type: "button", "aria-label": label, title: label, onclick }, text);
    this.slider = el("input.scrub", { type: "range", min: 0, max: 0, value: 0, "aria-label": "step", oninput: () => this.go(Number(this.slider.value)) });
    this.playButton = button(icon("play"), "play (space)", () => this.toggle());
    this.counter = el("output.counter");
    this.curve = svg("svg", { class: "rewards", viewBox: "0 0 400 90", preserveAspectRatio: "none", role: "img", "aria-label": "reward so far", onpointerdown: (e) => this.pointCurve(e), onpointermove: (e) => { if (e.buttons) this.pointCurve(e); } });
    this.curveLabels = el("div.curve-labels");
    this.facts = el("dl.facts");
    this.actions = el("div.table");
    this.budget = el("input", { type: "number", min: 0, max: 100000, step: 1, name: "again-budget", "aria-label": "budget", required: true });
    this.c = el("input", { type: "number", min: 0, step: "any", name: "again-c", "aria-label": "c", required: true });
    this.againButton = el("button", { type: "submit" }, "Search again");
    this.againStatus = el("div.job", { role: "status" });
    this.againForm = el("form.again", { onsubmit: (event) => { event.preventDefault(); this.searchAgain(); } },
      el("label", {}, el("span", {}, "Budget"), this.budget), el("label", {}, el("span", {}, "c"), this.c), this.againButton);
    this.tree = el("div.tree");
    this.inspector = el("aside.inspector", { "aria-live": "polite" });
    this.treeTools = el("div.tools", {}, button("Expand all", "Expand all", () => this.drawn?.expandAll()), button("Collapse", "Collapse", () => this.drawn?.collapse()));
    this.searchTitle = el("h2", {}, "Search");
    this.treeCard = el("section.card.treecard", {}, el("div.head", {}, el("h2", {}, "Tree"),
      el("p.soft.small.legend", {}, "size: visits · colour: value · square: ends the episode"), this.treeTools),
    el("div.treerow", {}, this.tree, this.inspector));
    this.body.append(
      el("div.split", {},
        el("section.card.watch", {}, this.figure,
          el("div.transport", {}, button(icon("first"), "first step (Home)", () => this.go(0)), button(icon("back"), "back (←)", () => this.go(this.at - 1)),
            this.playButton, button(icon("on"), "on (→)", () => this.go(this.at + 1)), this.slider, this.counter),
          el("div.curve", {}, this.curve, this.curveLabels), this.facts),
        el("section.card.search", {}, el("div.head", {}, this.searchTitle, this.againForm), this.againStatus, this.actions)),
      this.treeCard);
  }

  async open(episode, step) {
    this.stop();
    this.leaveSearch();
    this.episode = episode;
    this.steps.clear();
    this.budget.value = episode.settings.budget;
    this.c.value = episode.settings.c;
    this.body.hidden = false;
    this.extend(episode);
    await this.go(Math.min(step, Math.max(0, episode.states - 1)), true);
  }

  /** More steps of the same episode have arrived. */
  extend(episode) {
    this.episode = episode;
    this.slider.max = Math.max(0, episode.states - 1);
    this.showCount();
    this.showRewards();
  }

  get last() { return this.episode.states - 1; }

  async go(step, force = false) {
    step = Math.max(0, Math.min(step, this.last));
    if (step === this.at && !force) return;
    if (step !== this.at) this.leaveSearch();
    this.at = step;
    this.slider.value = step;
    this.showCount();
    this.showRewards();
    const { episode } = this;
    const keep = { run: this.run, episode: episode.episode, step, ...shareable(episode.settings) };
    history.replaceState(null, "", address("/episode", keep));
    let record = null, failure = "";
    try {
      record = await this.record(step);
    } catch (error) {
      failure = error.message;
    }
    if (this.episode !== episode && this.episode?.episode !== episode.episode) return;
    if (this.at !== step) return;
    this.recordHere = record;
    this.showState();
    this.showFacts(record);
    this.showSearch(record?.search ?? null);
    if (failure) this.actions.replaceChildren(notice(failure, "error"));
    this.body.dataset.shown = step;
    for (const near of [step + 1, step - 1, step + 2]) this.record(near).catch(() => {});
  }

  async record(step) {
    if (step < 0 || step >= this.episode.rewards.length) return null;
    if (!this.steps.has(step)) {
      const asked = getJSON(`/api/episodes/${this.episode.episode}/steps/${step}`);
      asked.catch(() => this.steps.delete(step));
      this.steps.set(step, asked);
      if (this.steps.size > KEPT) this.steps.delete(this.steps.keys().next().value);
      if (this.episode.pictures) new Image().src = this.pictureOf(step);
    }
    return this.steps.get(step);
  }

  pictureOf(step) { return `/api/episodes/${this.episode.episode}/pictures/${step}`; }

  showState(shown = null) {
    const record = this.recordHere;
    const src = shown ? shown.picture : this.episode.pictures ? this.pictureOf(this.at) : null;
    const text = shown ? shown.text : record?.text ?? (this.at === this.last ? this.episode.last_text : "");
    this.image.hidden = !src;
    if (src && this.image.getAttribute("src") !== src) this.image.src = src;
    this.text.hidden = Boolean(src);
    this.text.textContent = text;
    this.figure.classList.toggle("preview", Boolean(shown));
    const over = this.at === this.last && this.episode.over ? this.episode.over : "";
    this.caption.textContent = shown ? shown.label : over ? `The end: ${over}.` : record?.note ?? "";
  }

  showCount() { this.counter.textContent = `${this.at} / ${this.last}`; }

  showFacts(record) {
    const total = sum(this.episode.rewards.slice(0, this.at));
    const row = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
    const chosen = record && (record.search.names[record.search.chosen] ?? `action ${record.search.chosen}`);
    this.facts.replaceChildren(row("reward so far", number(total)),
      record ? row("next action", chosen) : "", record ? row("its reward", number(record.reward)) : "");
  }

  showRewards() {
    const totals = [0];
    for (const reward of this.episode.rewards) totals.push(totals.at(-1) + reward);
    const low = Math.min(...totals), high = Math.max(...totals), span = high - low || 1;
    const n = Math.max(1, totals.length - 1);
    const x = (i) => 4 + (392 * i) / n, y = (v) => 82 - (74 * (v - low)) / span;
    const line = totals.map((v, i) => `${i ? `H ${x(i).toFixed(1)} V` : `M ${x(0)}`} ${y(v).toFixed(1)}`).join(" ");
    const at = Math.min(this.at, totals.length - 1);
    this.curve.replaceChildren(
      low <= 0 && high >= 0 ? svg("line", { x1: 0, x2: 400, y1: y(0), y2: y(0), class: "zero" }) : "",
      svg("path", { d: line, class: "total" }),
      svg("line", { x1: x(at), x2: x(at), y1: 0, y2: 90, class: "cursor" }));
    this.curveLabels.replaceChildren(el("span", {}, high > low ? number(high) : ""), el("span", {}, number(low)));
  }

  pointCurve(event) {
    const box = this.curve.getBoundingClientRect();
    this.go(Math.round(((event.clientX - box.left) / box.width) * this.last));
  }

  // ---- the search ---------------------------------------------------------------------------

  showSearch(search) {
    const { again } = this;
    const seen = again?.search ?? search;
    this.againStatus.replaceChildren(again ? el("p.small", {}, `Searched again with budget ${again.budget}, c ${again.c}. `,
      el("button.link", { type: "button", onclick: () => { this.again = null; this.showSearch(search); } }, "Show the episode's own search")) : "");
    const stopped = this.episode.over.startsWith("stopped");
    this.againForm.hidden = !seen && !stopped;
    this.inspector.replaceChildren(el("p.soft", {}, "Hover a node for its numbers, click it to see its state."));
    this.treeCard.hidden = !seen;
    if (!seen) {
      this.actions.replaceChildren(el("p.soft", {}, stopped
        ? "The episode was stopped here, before a decision. Search again to see what would come."
        : "The episode is over here; nothing is decided any more."));
      this.tree.replaceChildren();
      this.drawn = null;
      return;
    }
    this.treeTools.hidden = false;
    drawActions(this.actions, seen, {
      prior: this.prior, onhover: (a) => this.preview(a, seen), onpick: (a) => this.preview(a, seen, true),
    });
    if (seen.tree.length > 1) {
      this.drawn = drawTree(this.tree, seen, { onselect: (node, path) => this.inspect(node, path) });
      if (seen.hidden) this.tree.append(el("p.soft.small", {}, `${number(seen.hidden)} less visited nodes are not shown.`));
    } else {
      this.drawn = null;
      this.treeTools.hidden = true;
      this.tree.replaceChildren(el("p.soft", {}, "Budget 0: the agent acts on its network, without a search."));
    }
  }

  /** Another state is shown: forget its other search, and cancel the one that goes on. */
  leaveSearch() {
    this.again = null;
    if (this.searching) cancel(this.searching).catch(() => {});
    this.searching = null;
  }

  async searchAgain() {
    const { at, episode } = this;
    const left = () => this.at !== at || this.episode.episode !== episode.episode;
    const asked = { episode: episode.episode, step: at, budget: Number(this.budget.value), c: Number(this.c.value) };
    this.againButton.disabled = true;
    const stop = el("button.cancel", { type: "button" }, "Cancel");
    const bar = el("progress", { max: 1 }), text = el("span.text");
    try {
      const started = await postJSON("/api/episodes/search", asked);
      if (left()) { cancel(started).catch(() => {}); return; }
      this.searching = started;
      stop.onclick = () => {
        stop.disabled = true;
        cancel(started).catch((error) => { text.textContent = error.message; });
      };
      this.againStatus.replaceChildren(bar, text, stop);
      const job = await follow(started, (now) => {
        text.textContent = progressText(now);
        const share = progressShare(now);
        if (share !== null) bar.value = share;
      });
      if (left()) return;
      if (job.state === "done") {
        this.again = { search: job.result.search, budget: asked.budget, c: asked.c };
        this.showSearch((await this.record(at))?.search ?? null);
      } else {
        const [first, ...rest] = (job.why || "Cancelled.").split("\n");
        this.againStatus.replaceChildren(notice(first, job.state === "failed" ? "error" : "info", rest.length ? el("pre", {}, rest.join("\n")) : ""));
      }
    } catch (error) {
      if (!left()) this.againStatus.replaceChildren(notice(error.message, "error"));
    } finally {
      this.searching = null;
      this.againButton.disabled = false;
    }
  }

  look(steps) {
    this.looking?.abort();
    this.looking = new AbortController();
    const body = { episode: this.episode.episode, step: this.at, steps };
    return postJSON("/api/episodes/look", body, { signal: this.looking.signal });
  }

  /** Show the state after an action instead of the state, while the pointer is there. */
  preview(action, search, now = false) {
    clearTimeout(this.previewing);
    if (!action) {
      this.looking?.abort();
      this.showState();
      return;
    }
    const { at } = this;
    this.previewing = setTimeout(async () => {
      try {
        const shown = await this.look([[action.action, this.recordHere?.step[1] ?? null]]);
        if (this.at !== at) return;
        const over = shown.over ? `, ${shown.over}` : "";
        this.showState({ ...shown, label: `after ${search.names[action.action]}: reward ${number(shown.reward)}${over}` });
      } catch (error) {
        if (error.name !== "AbortError") this.caption.textContent = error.message.split("\n")[0];
      }
    }, now ? 0 : 90);
  }

  /** Show the state in a node of the tree. */
  async inspect(node, path) {
    const { at } = this;
    const row = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
    const stage = el("div.stage", {}, el("p.soft", {}, "…"));
    const trail = path.length ? el("ol.path", {}, path.map((n) => el("li", {}, n.name))) : el("p.soft", {}, "the state of the episode");
    this.inspector.replaceChildren(stage, trail, el("dl.numbers", {},
      node.parent >= 0 && [row("value", number(node.value, 4)), row("prior", number(node.prior, 4))],
      row("visits", number(node.visits)), node.parent >= 0 && row("reward", number(node.reward, 4))));
    try {
      const shown = await this.look(path.map((n) => [n.action, n.luck]));
      if (this.at !== at) return;
      stage.replaceChildren(shown.picture ? el("img", { src: shown.picture, alt: "the state in this node", onload: (event) => coarse(event.target) }) : el("pre.state", {}, shown.text));
      if (shown.over) trail.after(el("p.soft", {}, `The episode ends here: ${shown.over}.`));
    } catch (error) {
      if (error.name !== "AbortError") stage.replaceChildren(notice(error.message.split("\n")[0], "error"));
    }
  }

  // ---- keys and playing ---------------------------------------------------------------------

  key(event) {
    if (this.body.hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest?.("input:not([type=range]), select, textarea");
    if (field) return;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      event.preventDefault();
      this.stop();
      this.go(this.at + (event.key === "ArrowRight" ? 1 : -1));
    } else if (event.key === "Home" || event.key === "End") {
      event.preventDefault();
      this.go(event.key === "Home" ? 0 : this.last);
    } else if (event.key === " " && !event.target.closest?.("button, [role=button]")) {
      event.preventDefault();
      this.toggle();
    }
  }

  toggle() {
    if (this.playing) { this.stop(); return; }
    if (this.at === this.last) this.go(0);
    const wait = this.last > 100 ? 120 : this.last > 30 ? 300 : 800;
    this.playing = setInterval(() => {
      if (this.at < this.last) this.go(this.at + 1);
      else if (this.episode.over || !this.episode.job || isOver(this.episode.job)) this.stop();
    }, wait);
    this.showPlayButton("pause");
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    this.showPlayButton("play");
  }

  showPlayButton(what) {
    this.playButton.replaceChildren(icon(what));
    this.playButton.setAttribute("aria-label", `${what} (space)`);
    this.playButton.title = `${what} (space)`;
  }
}

/** Small pictures, such as the grids of MinAtar, keep their pixels when they are enlarged. */
const coarse = (image) => image.classList.toggle("coarse", image.naturalWidth < 300);

const sum = (list) => list.reduce((a, b) => a + b, 0);

const shareable = ({ best, of, seed, level, budget, c, most }) => ({ checkpoint: best ? "best" : "last", of, seed, level, budget, c, most });
