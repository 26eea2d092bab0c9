// The actions of a decision: Qθ (grey) against Q_MCTS (accent), and visits.
import { el, number } from "./app.js";

/** Where bars begin and end: from 0 if the values are not all far from it. */
export function scale(values) {
  const finite = values.filter((x) => x !== null && Number.isFinite(x));
  let low = Math.min(...finite, Infinity), high = Math.max(...finite, -Infinity);
  if (!finite.length) return { low: 0, high: 1 };
  const span = high - low;
  if (low >= 0 && low <= 0.6 * high) low = 0;
  else if (high <= 0 && high >= 0.6 * low) high = 0;
  else if (!(low <= 0 && high >= 0)) { low -= 0.15 * span; high += 0.05 * span; }
  if (low === high) { low -= 0.5; high += 0.5; }
  return { low, high };
}

/** A formatter with so many decimals that these numbers differ. */
export function decimals(values) {
  const finite = values.filter((x) => x !== null && Number.isFinite(x));
  const span = Math.max(...finite, 0) - Math.min(...finite, 0);
  const digits = span > 0 ? Math.min(Math.max(2 - Math.floor(Math.log10(span)), 0), 6) : 2;
  return (x) => (x === null ? "–" : x.toFixed(digits).replace("-", "−"));
}

/** Rows of actions. onhover(action or null), onpick(action). prior: the name of Qθ. */
export function drawActions(host, search, { onhover, onpick, prior = "Qθ" } = {}) {
  const values = search.actions.flatMap((a) => [a.prior, a.value]);
  const { low, high } = scale(values);
  const fixed = decimals(values);
  const origin = Math.min(Math.max(0, low), high);
  const place = (x) => (100 * (x - low)) / (high - low);
  const most = Math.max(1, ...search.actions.map((a) => a.visits));
  const bar = (kind, x) => x !== null && el(`span.qbar.${kind}`, { style: {
    left: `${Math.min(place(x), place(origin))}%`, width: `max(2px, ${Math.abs(place(x) - place(origin))}%)`,
  } });
  const rows = search.actions.map((a) => {
    const chosen = a.action === search.chosen;
    return el(`tr${chosen ? ".chosen" : ""}${a.visits ? "" : ".untried"}`, {
      tabindex: "0", "data-action": a.action,
      onpointerenter: () => onhover?.(a), onpointerleave: () => onhover?.(null),
      onfocus: () => onhover?.(a), onblur: () => onhover?.(null),
      onclick: () => onpick?.(a), onkeydown: (event) => { if (event.key === "Enter") onpick?.(a); },
    },
    el("td.what", { title: search.names[a.action] }, chosen && el("span.pick", { title: "chosen", "aria-label": "chosen" }, "●"),
      search.names[a.action] ?? `action ${a.action}`),
    el("td.qbars", {}, el("div", {}, el("span.zero", { style: { left: `${place(origin)}%` } }), bar("prior", a.prior), bar("value", a.value))),
    el("td.number.prior", {}, fixed(a.prior)),
    el("td.number.value", {}, fixed(a.value)),
    el("td.number.visits", {}, el("span.visitbar", { style: { width: `${(34 * a.visits) / most}px` } }), a.visits || "–"));
  });
  const left = search.allowed - search.actions.length;
  host.replaceChildren(
    el("table.actions", {},
      el("thead", {}, el("tr", {},
        el("th", {}, "action"),
        el("th.axis", {}, el("div", {}, el("span", {}, fixed(low)), el("span", {}, fixed(high)))),
        el("th.number", {}, el("i.key.prior"), prior), el("th.number", {}, el("i.key.value"), "search"),
        el("th.number", {}, "visits"))),
      el("tbody", {}, rows)),
    el("p.soft.small", {}, `${number(search.tried)} of ${number(search.allowed)} actions tried`,
      left > 0 ? `; ${number(left)} more are not shown` : ""));
}
