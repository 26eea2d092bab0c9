// Helpers that all pages share, and the choice of the page by its path.
// A page is a module that exports `show(main, query)`: it fills the element `main`;
// `query` holds the URLSearchParams.

const PAGES = {
  "/": "./runs.js",
  "/run": "./run.js",
  "/episode": "./episode.js",
  "/experiments": "./experiments.js",
  "/experiment": "./experiment.js",
};
const token = document.querySelector("meta[name=token]").content;

/** Make an element: el("a.button", {href, onclick}, child, "text", [more]).
 *  Attributes named `on…` are listeners, `style` is an object of CSS properties (variables too),
 *  other functions and objects are set as properties; null and false are left out. */
export function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const made = document.createElement(tag || "div");
  if (classes.length) made.className = classes.join(" ");
  set(made, attributes);
  made.append(...children.flat(Infinity).filter((x) => x !== null && x !== undefined && x !== false));
  return made;
}

/** The same for SVG: svg("circle", {r: 3}). Attributes only, and listeners. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(made, attributes);
  made.append(...children.flat(Infinity).filter((x) => x !== null && x !== undefined && x !== false));
  return made;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, x] of Object.entries(value)) element.style.setProperty(key, x);
    else element.setAttribute(name, value === true ? "" : value);
  }
}

/** "/run" and {run: "a b"} as "/run?run=a%20b"; an array gives its name several times. */
export function address(path, query = {}) {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value])
      .filter((x) => x !== null && x !== undefined)
      .map((x) => `${encodeURIComponent(name)}=${encodeURIComponent(String(x).toWellFormed())}`));
  return pairs.length ? `${path}?${pairs.join("&")}` : path;
}

export const GONE = "The server does not answer; is save-rl studio still running?";

async function answer(response) {
  let data = null;
  try { data = await response.json(); } catch { /* said below */ }
  if (!response.ok) throw new Error(data?.error ?? `The server answered ${response.status}.`);
  return data;
}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(GONE);
  }
  return answer(response);
}

/** GET as JSON; throws an Error with the server's words. options: {signal} of an AbortController. */
export const getJSON = (path, query = {}, options = {}) => ask(address(path, query), options);

/** POST JSON with the token; throws an Error with the server's words. */
export const postJSON = (path, body = {}, options = {}) => ask(path, {
  ...options,
  method: "POST",
  headers: { "Content-Type": "application/json", "X-Studio-Token": token },
  body: JSON.stringify(body),
});

/** Numbers as people read them. */
export function number(x, digits = 3) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e15) return x.toLocaleString("en");
  if (size < 1e-3 || size >= 1e7) return x.toExponential(2).replace(/\.?0+e/, "e");
  return x.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : digits });
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 600 && s % 60) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  const h = Math.floor(s / 3600);
  return h < 48 ? `${h} h ${Math.floor((s % 3600) / 60)} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
}

/** A box with words, for errors and for empty pages. */
export const notice = (text, kind = "info", ...more) =>
  el(`div.notice.${kind}`, { role: kind === "error" ? "alert" : "note" }, el("p", {}, text), ...more);

/** Load a classic script of ours once, such as vendor/uPlot.iife.min.js. */
const scripts = new Map();
export function script(src) {
  if (!scripts.has(src)) {
    scripts.set(src, new Promise((done, fail) => {
      const made = el("script", { src });
      made.onload = done;
      made.onerror = () => fail(new Error(`${src} could not be loaded.`));
      document.head.append(made);
    }));
  }
  return scripts.get(src);
}

export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function themeButton() {
  const button = document.getElementById("theme");
  const say = () => { button.textContent = isDark() ? "☀" : "☾"; };
  button.addEventListener("click", () => {
    const chosen = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    try { localStorage.setItem("theme", chosen); } catch { /* storage is off */ }
    changed();
  });
  const changed = () => { say(); dispatchEvent(new Event("themechange")); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  say();
}

async function start() {
  themeButton();
  const main = document.getElementById("main");
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.pathname === "/" ? ["/", "/run", "/episode"] : ["/experiments", "/experiment"];
    if (here.includes(location.pathname)) link.setAttribute("aria-current", "page");
  }
  try {
    const page = await import(PAGES[location.pathname]);
    await page.show(main, new URLSearchParams(location.search));
  } catch (error) {
    main.replaceChildren(notice(error.message, "error"));
    console.error(error);
  }
}

start();
