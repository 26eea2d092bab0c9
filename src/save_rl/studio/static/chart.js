// Charts of curves over seeds: a line with its range, on linear or logarithmic axes.

import { el, isDark, number, script } from "./app.js";

// Those of report/palette.py, in an order in which neighbours differ most.
const COLOURS = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933", "#332288", "#44AA99"];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const load = () => script("/static/vendor/uPlot.iife.min.js");

/** Gives every key a colour, and keeps it as long as the key is used. An agent has the colour it
 *  has in all figures, unless another curve has that already; then dashes tell them apart, too. */
export class Colours {
  #given = new Map();

  of(keys) {
    for (const key of [...this.#given.keys()]) if (!keys.some(([k]) => k === key)) this.#given.delete(key);
    for (const [key, preferred] of keys) {
      if (this.#given.has(key)) continue;
      const used = [...this.#given.values()];
      const free = (colour) => !used.some((look) => look.colour === colour);
      const wanted = [preferred, ...COLOURS].filter(Boolean);
      const colour = wanted.find(free) ?? wanted[used.length % wanted.length];
      const dash = Math.floor(used.length / COLOURS.length) % DASHES.length;
      this.#given.set(key, { colour, dash: DASHES[dash] });
    }
    return this.#given;
  }
}

const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
const light = (rgb) => {
  const [r, g, b] = rgb.map((x) => (x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

/** The colour, mixed with white or black until it stands out from the card. */
export function legible(colour) {
  const [card, towards] = isDark() ? [[28, 30, 33], 255] : [[255, 255, 255], 0];
  let rgb = channels(colour);
  for (let i = 0; i < 12; i += 1) {
    const [a, b] = [light(rgb), light(card)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) >= (isDark() ? 3 : 2.2)) break;
    rgb = rgb.map((x) => Math.round(x + (towards - x) * 0.12));
  }
  return `#${rgb.map((x) => x.toString(16).padStart(2, "0")).join("")}`;
}

/** Exponential moving average without the pull of its start; amount in [0, 1). */
export function smooth(values, amount) {
  if (!amount || !values) return values;
  let [sum, weight] = [0, 0];
  return values.map((value) => {
    sum = amount * sum + (1 - amount) * value;
    weight = amount * weight + (1 - amount);
    return sum / weight;
  });
}

export const clock = (seconds) => {
  if (seconds < 120) return `${compact.format(seconds)} s`;
  return seconds < 7200 ? `${compact.format(seconds / 60)} min` : `${compact.format(seconds / 3600)} h`;
};

const SANS = getComputedStyle(document.documentElement).getPropertyValue("--sans").trim();

/** A colour of app.css, as a canvas takes it. */
function css(name) {
  const probe = el("span", { style: { color: `var(${name})` } });
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** A chart in an element. `draw(curves, options)` shows or replaces its curves:
 *  curves: {key, label, colour, dash, x, median, low, high}; options: {logX, logY, range, xLabel, yLabel, time, smoothing,
 *  height, legend, sync}. */
export class Chart {
  #box; #legend; #plot = null; #curves = []; #options = {}; #zoomed = false; #shape = "";

  constructor(box) {
    this.#box = box;
    box.classList.add("chart");
    this.#legend = el("ul.legend");
    new ResizeObserver(() => this.#resize()).observe(box);
    addEventListener("themechange", () => { this.#shape = ""; this.draw(this.#curves, this.#options); });
  }

  get curves() { return this.#shown(); }

  #shown() {
    const { smoothing } = this.#options;
    return this.#curves.map((c) => ({
      ...c, ink: legible(c.colour), median: smooth(c.median, smoothing), low: smooth(c.low, smoothing), high: smooth(c.high, smoothing),
    }));
  }

  draw(curves, options = {}) {
    this.#curves = curves.filter((c) => c.x.length);
    this.#options = options;
    if (!this.#curves.length) {
      this.#destroy();
      this.#box.replaceChildren(el("div.nothing", {}, options.empty ?? "No values yet"));
      return;
    }
    const shown = this.#shown();
    const positive = (values) => (options.logY ? values.map((y) => (y > 0 ? y : null)) : values);
    const tables = shown.map((c) => (options.range && c.low
      ? [c.x, positive(c.median), positive(c.low), positive(c.high)] : [c.x, positive(c.median)]));
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const shape = JSON.stringify([shown.map((c) => [c.key, c.ink, c.dash, !!c.low]), { ...options, smoothing: 0 }]);
    if (this.#plot && shape === this.#shape) {
      this.#plot.setData(data, !this.#zoomed);
      this.#say(null);
      return;
    }
    this.#destroy();
    this.#shape = shape;
    this.#box.replaceChildren();
    this.#plot = new uPlot(this.#settings(shown), data, this.#box);
    if (options.legend !== false) {
      this.#fillLegend(shown);
      this.#box.append(this.#legend);
    }
  }

  #settings(shown) {
    const { logX, logY, range, time, height = 320, sync, yLabel } = this.#options;
    const series = [{}];
    const bands = [];
    for (const c of shown) {
      series.push({ label: c.label, stroke: c.ink, width: 1.8, dash: c.dash?.length ? c.dash : undefined, spanGaps: true, points: { show: c.x.length === 1, size: 6, fill: c.ink } });
      if (range && c.low) {
        const edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
        series.push(edge, { ...edge });
        bands.push({ series: [series.length - 1, series.length - 2], fill: `${c.ink}26` });
      }
    }
    const [soft, line] = [css("--soft"), css("--line")];
    const look = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: `12px ${SANS}` };
    const format = (f) => (u, splits) => splits.map((x) => (x === null ? "" : f(x)));
    const { width } = this.#box.getBoundingClientRect();
    return {
      width: Math.max(width, 120), height, series, bands,
      legend: { show: false },
      focus: { alpha: 0.25 },
      cursor: { points: { show: false }, drag: { x: true, y: false }, ...(sync ? { sync: { key: sync, setSeries: false } } : {}) },
      scales: {
        x: { time: false, distr: logX ? 3 : 1, range: logX ? (u, low, high) => [low, high] : undefined },
        y: { distr: logY ? 3 : 1, range: (u, low, high) => (logY ? stretched : padded)(low, high) },
      },
      axes: [
        { ...look, ...(logX ? logTicks : {}), size: 30, values: format(time ? clock : (x) => compact.format(x)) },
        {
          ...look, ...(logY ? logTicks : {}), values: format((y) => short(y)), label: yLabel, labelSize: 18, labelFont: look.font,
          size: (u, values) => 14 + 7 * Math.max(3, ...(values ?? []).map((v) => v.length)),
        },
      ],
      hooks: {
        setCursor: [(u) => this.#say(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null)],
        setSelect: [(u) => { if (u.select.width > 0) this.#zoomed = true; }],
        ready: [(u) => u.over.addEventListener("dblclick", () => { this.#zoomed = false; })],
      },
    };
  }

  #fillLegend(shown) {
    let index = 1;
    const { range } = this.#options;
    this.#legend.replaceChildren(...shown.map((c) => {
      const at = index;
      index += range && c.low ? 3 : 1;
      const mark = el("span.line", { style: { "--curve": c.ink } });
      if (c.dash?.length) mark.style.borderTopStyle = c.dash[0] > 4 ? "dashed" : "dotted";
      return el("li", {
        title: c.title ?? c.label,
        onmouseenter: () => this.#plot?.setSeries(at, { focus: true }),
        onmouseleave: () => this.#plot?.setSeries(null, { focus: false }),
      }, mark, el("span.text", {}, c.label), el("b"));
    }));
    this.#say(null);
  }

  /** Write the values at a place into the legend; the last ones if there is no place. */
  #say(place) {
    const values = this.#legend.querySelectorAll("b");
    this.#shown().forEach((c, i) => {
      let at = c.x.length - 1;
      if (place !== null) {
        at = nearest(c.x, place);
        if (place > c.x.at(-1) || place < c.x[0]) at = -1;
      }
      if (values[i]) values[i].textContent = at < 0 ? "" : number(c.median[at]);
    });
    this.#options.onplace?.(place);
  }

  #resize() {
    const { width } = this.#box.getBoundingClientRect();
    if (this.#plot && width > 0 && Math.abs(width - this.#plot.width) > 1) this.#plot.setSize({ width, height: this.#plot.height });
  }

  #destroy() {
    this.#plot?.destroy();
    this.#plot = null;
    this.#shape = "";
    this.#zoomed = false;
  }

  /** Download what is shown as a PNG, with title, axes and legend. */
  png(name, title) {
    if (!this.#plot) return;
    const drawn = this.#plot.ctx.canvas;
    const ratio = devicePixelRatio || 1;
    const shown = this.#shown();
    const [margin, line] = [16 * ratio, 20 * ratio];
    const canvas = el("canvas", { width: drawn.width + 2 * margin, height: drawn.height + 3 * margin + line * (shown.length + 2) });
    const paint = canvas.getContext("2d");
    paint.fillStyle = css("--card");
    paint.fillRect(0, 0, canvas.width, canvas.height);
    paint.fillStyle = css("--ink");
    paint.font = `600 ${14 * ratio}px ${SANS}`;
    paint.fillText(title, margin, margin + line / 2);
    paint.drawImage(drawn, margin, margin + line);
    paint.font = `${12 * ratio}px ${SANS}`;
    let y = margin + line * 2 + drawn.height;
    paint.fillStyle = css("--soft");
    paint.fillText(this.#options.xLabel ?? "", margin, y);
    for (const c of shown) {
      y += line;
      paint.strokeStyle = c.ink;
      paint.lineWidth = 2.5 * ratio;
      paint.setLineDash((c.dash ?? []).map((x) => x * ratio));
      paint.beginPath();
      paint.moveTo(margin, y - 4 * ratio);
      paint.lineTo(margin + 22 * ratio, y - 4 * ratio);
      paint.stroke();
      paint.fillStyle = css("--ink");
      paint.fillText(c.label, margin + 30 * ratio, y);
    }
    canvas.toBlob((blob) => save(blob, `${name}.png`), "image/png");
  }

  /** Download what is shown as a CSV. */
  csv(name, over, metric) {
    const quote = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const lines = [["curve", over, metric, "lowest", "highest"].join(",")];
    for (const c of this.#shown()) {
      c.x.forEach((x, i) => lines.push([quote(c.title ?? c.label), x, c.median[i], c.low?.[i] ?? "", c.high?.[i] ?? ""].join(",")));
    }
    save(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }), `${name}.csv`);
  }
}

function save(blob, name) {
  const href = URL.createObjectURL(blob);
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}

const short = (y) => (Math.abs(y) >= 1e4 || (y !== 0 && Math.abs(y) < 1e-3) ? compact.format(y).replace(/^(-?)0\.00\d*$/, y.toExponential(0)) : String(+y.toPrecision(6)));

function padded(low, high) {
  if (low === null || low === undefined) return [0, 1];
  const pad = high > low ? 0.06 * (high - low) : Math.abs(high) * 0.1 || 0.5;
  return [low - pad, high + pad];
}

const stretched = (low, high) => (low > 0 ? [low / 1.1, high * 1.1] : [0.1, 1]);

// Ticks of a logarithmic axis: 1, 2, 5, 10, …; powers of ten alone where there are many.
const logTicks = {
  splits: (u, axis, low, high) => {
    const decades = Math.log10(high / low);
    const parts = decades > 4 ? [1] : decades > 0.6 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      found.push(...parts.map((part) => part * 10 ** power).filter((x) => x >= low && x <= high));
    }
    return found;
  },
  filter: (u, splits) => splits,
};

function nearest(xs, x) {
  let [a, b] = [0, xs.length - 1];
  while (b - a > 1) {
    const middle = (a + b) >> 1;
    if (xs[middle] < x) a = middle;
    else b = middle;
  }
  return Math.abs(xs[a] - x) <= Math.abs(xs[b] - x) ? a : b;
}
