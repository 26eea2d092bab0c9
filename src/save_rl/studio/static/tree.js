// A search tree as an interactive picture. It grows from left to right; the most visited child
// continues its parent's row, the others start rows below, so labels never overlap.
import { el, number, svg } from "./app.js";
import { decimals } from "./bars.js";

const ROW = 36, MARGIN = 22, GAP = 26, LETTER = 6.3, LONGEST = 30;
const FEW = 8;  // children that are shown at first
const SMALL = 4, LARGE = 11;  // radii

/** Nodes from the rows of a record: [parent, action, visits, value, reward, prior, terminal]. */
export function readTree(search) {
  const nodes = search.tree.map(([parent, action, visits, value, reward, prior, terminal], at) => ({
    at, parent, action, visits, value, reward, prior, terminal: Boolean(terminal), children: [],
    luck: search.luck?.[at] ?? null,  // of the step that led here, in a simulator with chance
    name: parent < 0 ? "root" : search.names[action] ?? `action ${action}`,
  }));
  for (const node of nodes.slice(1)) nodes[node.parent].children.push(node);
  const better = (a, b) => b.visits - a.visits || (b.value ?? -Infinity) - (a.value ?? -Infinity) || a.at - b.at;
  for (const node of nodes) node.children.sort(better);
  if (search.luck) for (const node of nodes) nameOutcomes(node.children);
  return nodes;
}

/** With chance, an action leads to several nodes: number them. */
function nameOutcomes(children) {
  const same = Map.groupBy(children, (child) => child.action);
  for (const outcomes of same.values()) {
    if (outcomes.length > 1) outcomes.forEach((child, i) => { child.name += ` · outcome ${i + 1}`; });
  }
}

/** The nodes from the root, without it, to a node. */
export function pathTo(nodes, node) {
  const path = [];
  for (let x = node; x.parent >= 0; x = nodes[x.parent]) path.unshift(x);
  return path;
}

const shorten = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);
const radius = (share) => Math.sqrt(SMALL ** 2 + share * (LARGE ** 2 - SMALL ** 2));

/** Draw a tree into `host`. onselect(node, path): a node was clicked. Returns {expandAll, collapse}. */
export function drawTree(host, search, { onselect, selected = null } = {}) {
  const nodes = readTree(search);
  const closed = new Set(), shown = new Map();  // closed nodes; how many children of others
  const values = nodes.slice(1).map((node) => node.value).filter((x) => x !== null);
  const low = Math.min(...values), high = Math.max(...values);
  const fixed = decimals(values);
  const tip = el("div.tree-tip", { role: "tooltip", hidden: true });
  const canvas = el("div.tree-canvas", { tabindex: "0", role: "tree", "aria-label": "search tree" });
  host.replaceChildren(canvas, tip);
  let chosen = selected;
  startSmall();
  draw();

  /** Close what is deep and rarely visited, if the tree is large. */
  function startSmall() {
    if (nodes.length <= 60) return;
    const often = [...nodes].sort((a, b) => b.visits - a.visits).slice(0, 40);
    const open = new Set(often.map((node) => node.at));
    for (const node of nodes) if (!open.has(node.at)) closed.add(node.at);
  }

  function visible(node) {
    if (closed.has(node.at)) return [];
    return node.children.slice(0, shown.get(node.at) ?? FEW);
  }

  /** Depth and row of every visible node, and of the lines "n more". */
  function places() {
    const found = [], more = [];
    let row = 0;
    (function put(node, depth) {
      const mine = row;
      found.push({ node, depth, row: mine });
      const children = visible(node);
      children.forEach((child, i) => {
        if (i > 0) row += 1;
        put(child, depth + 1);
      });
      const left = closed.has(node.at) ? 0 : node.children.length - children.length;
      if (left > 0) {
        row += 1;
        more.push({ node, depth: depth + 1, row, rest: left });
      }
    })(nodes[0], 0);
    return { found, more, rows: row + 1 };
  }

  function draw() {
    const { found, more, rows } = places();
    const deepest = Math.max(...found.map((p) => p.depth), ...more.map((p) => p.depth));
    const width = Array.from({ length: deepest + 1 }, (_, depth) => {
      const texts = found.filter((p) => p.depth === depth && depth > 0).map((p) => label(p.node));
      texts.push(...more.filter((p) => p.depth === depth).map((p) => rest(p.rest)));
      return depth === 0 ? 0 : Math.max(70, ...texts.map((text) => text.length * LETTER)) + 2 * GAP;
    });
    const x = [];
    width.reduce((sum, w, depth) => (x[depth] = sum + w), MARGIN + LARGE);
    const y = (row) => MARGIN + LARGE + row * ROW;
    const at = new Map(found.map((p) => [p.node.at, p]));
    const best = new Set();
    for (let node = nodes[0]; node; node = node.children[0]) best.add(node.at);
    const marked = new Set(chosen === null ? [] : [0, ...pathTo(nodes, nodes[chosen]).map((n) => n.at)]);

    const edges = found.filter((p) => p.depth > 0).reverse().map((p) => {
      const from = at.get(p.node.parent);
      const line = bent(x[from.depth], y(from.row), x[p.depth], y(p.row));
      const share = p.node.visits / Math.max(nodes[0].visits, 1);
      const kind = marked.has(p.node.at) ? " marked" : best.has(p.node.at) ? " best" : "";
      return svg("path", { d: line, class: `edge${kind}`, "stroke-width": 1.2 + 4 * share, "data-edge": p.node.at });
    });
    const stubs = more.map((p) => {
      const from = at.get(p.node.at);
      const reveal = () => { shown.set(p.node.at, Infinity); draw(); };
      return svg("g", { class: "more", role: "button", tabindex: "0", onclick: reveal, onkeydown: onEnter(reveal) },
        svg("path", { d: bent(x[from.depth], y(from.row), x[from.depth] + GAP, y(p.row)), class: "edge faint" }),
        svg("text", { x: x[from.depth] + GAP + 6, y: y(p.row) + 4 }, rest(p.rest)));
    });
    const marks = found.map((p) => mark(p, x[p.depth], y(p.row), x[p.depth - 1], at));
    const size = [x[deepest] + MARGIN + LARGE + (more.length ? 90 : 24), y(rows - 1) + LARGE + MARGIN];
    const focused = document.activeElement?.dataset?.node;
    canvas.replaceChildren(svg("svg", { width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}` }, edges, stubs, marks));
    if (focused !== undefined) canvas.querySelector(`[data-node="${focused}"]`)?.focus({ preventScroll: true });
  }

  function rest(count) {
    return `${count} more ${search.luck ? "outcome" : "action"}${count > 1 ? "s" : ""}`;
  }

  function label(node) {
    const value = node.value === null ? "" : `  ${fixed(node.value)}`;
    return `${shorten(node.name)}${value}`;
  }

  function mark(p, x, y, before) {
    const { node } = p;
    const share = node.visits / Math.max(nodes[0].visits, 1), r = radius(share);
    const warm = node.value === null ? 0 : high > low ? (node.value - low) / (high - low) : 0.5;
    const fill = `color-mix(in oklab, var(--accent) ${Math.round(8 + 92 * warm)}%, var(--card))`;
    const half = (r * Math.sqrt(Math.PI)) / 2;
    const shape = node.terminal
      ? svg("rect", { x: x - half, y: y - half, width: 2 * half, height: 2 * half, rx: 1.5, class: "node", style: { fill } })
      : svg("circle", { cx: x, cy: y, r, class: "node", style: { fill: node.parent < 0 ? "var(--card)" : fill } });
    const toggle = () => {
      if (closed.has(node.at)) closed.delete(node.at); else closed.add(node.at);
      draw();
    };
    const folded = closed.has(node.at) && node.children.length > 0;
    const click = () => { select(node); };
    return svg("g", {
      class: `mark${node.at === chosen ? " chosen" : ""}`, tabindex: "0", role: "treeitem", "data-node": node.at,
      "aria-label": `${node.name}, value ${number(node.value)}, ${node.visits} visits`,
      "aria-expanded": node.children.length ? String(!folded) : null,
      onclick: click, onkeydown: onEnter(click, toggle),
      ondblclick: (event) => { event.preventDefault(); toggle(); },
      onpointerenter: (event) => hover(node, event), onpointermove: (event) => hover(node, event),
      onpointerleave: () => leave(), onfocus: () => hover(node), onblur: () => leave(),
    },
    svg("circle", { cx: x, cy: y, r: LARGE + 5, class: "hit" }),
    p.depth > 0 && svg("rect", { x: before + GAP - 4, y: y - 21, width: x - before - GAP, height: 20, class: "hit" }),
    shape,
    p.depth > 0 && svg("text", { x: before + GAP, y: y - 6, class: node.parent === 0 && node.action === search.chosen ? "picked" : null }, shorten(node.name),
      node.value === null ? null : svg("tspan", { class: "value", dx: 8 }, fixed(node.value))),
    node.children.length > 0 && svg("g", {
      class: "fold", role: "button", "aria-label": folded ? "expand" : "collapse",
      onclick: (event) => { event.stopPropagation(); toggle(); },
    },
    svg("circle", { cx: x + LARGE + 9, cy: y, r: 9, class: "hit" }),
    folded
      ? svg("text", { x: x + LARGE + 4, y: y + 4, class: "count" }, `+${count(node)}`)
      : svg("path", { d: `M ${x + LARGE + 5} ${y} h 8`, class: "minus" })));
  }

  function count(node) {
    return node.children.reduce((sum, child) => sum + 1 + count(child), 0);
  }

  function select(node) {
    chosen = node.at;
    draw();
    onselect?.(node, pathTo(nodes, node));
  }

  function hover(node, event) {
    const path = pathTo(nodes, node);
    const ids = new Set(path.map((n) => String(n.at)));
    for (const edge of canvas.querySelectorAll(".edge")) edge.classList.toggle("hover", ids.has(edge.dataset.edge));
    const row = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
    tip.replaceChildren(
      el("p", {}, path.length ? path.map((n) => n.name).join(" › ") : "the state of the episode"),
      el("dl", {},
        node.parent >= 0 && [row("value", number(node.value, 4)), row("prior", number(node.prior, 4))],
        row("visits", number(node.visits)),
        node.parent >= 0 && row("reward", number(node.reward, 4)),
      ),
      node.terminal ? el("p.soft", {}, "ends the episode") : "",
    );
    tip.hidden = false;
    const box = host.getBoundingClientRect();
    const mine = canvas.querySelector(`[data-node="${node.at}"] .node`).getBoundingClientRect();
    const x = event?.clientX ?? mine.right, y = event?.clientY ?? mine.bottom;
    const left = Math.min(x - box.left + 16, box.width - tip.offsetWidth - 4);
    const below = y - box.top + 18;
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${below + tip.offsetHeight > box.height + 60 ? y - box.top - tip.offsetHeight - 12 : below}px`;
  }

  function leave() {
    tip.hidden = true;
    for (const edge of canvas.querySelectorAll(".edge.hover")) edge.classList.remove("hover");
  }

  return {
    nodes,
    expandAll() { closed.clear(); for (const node of nodes) shown.set(node.at, Infinity); draw(); },
    collapse() {
      shown.clear();
      closed.clear();
      for (const node of nodes.slice(1)) if (node.children.length) closed.add(node.at);
      draw();
    },
    unselect() { chosen = null; draw(); },
  };
}

/** A line to the right that turns down at its start, with a round corner. */
function bent(x, y, toX, toY) {
  if (y === toY) return `M ${x} ${y} H ${toX}`;
  const stem = x + 14, r = 7;
  return `M ${x} ${y} H ${stem - r} q ${r} 0 ${r} ${r} V ${toY - r} q 0 ${r} ${r} ${r} H ${toX}`;
}

const onEnter = (enter, plus) => (event) => {
  if (event.key === "Enter") { event.preventDefault(); enter(); }
  else if (plus && (event.key === "+" || event.key === "-")) { event.preventDefault(); plus(); }
};
