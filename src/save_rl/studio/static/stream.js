// The server's stream of changes. `hear` gets {kind: "open" | "lost"}, {kind: "all", data} at every
// connection, and {kind: "change", data}. Returns a function that ends it.

const RETRY = 2000; // milliseconds

export function follow(hear) {
  let source = null;
  let timer = null;
  let lost = false;
  const connect = () => {
    source = new EventSource("/api/stream");
    for (const kind of ["all", "change"]) {
      source.addEventListener(kind, (event) => hear({ kind, data: JSON.parse(event.data) }));
    }
    source.onopen = () => { lost = false; hear({ kind: "open" }); };
    source.onerror = () => {
      source.close();
      if (!lost) hear({ kind: "lost" });
      lost = true;
      timer = setTimeout(connect, RETRY);
    };
  };
  connect();
  return () => { clearTimeout(timer); source.close(); };
}

/** The same for a page: through the worker that all tabs share, where browsers have such workers. */
export function listen(hear) {
  const say = (message) => {
    const text = message.kind === "lost" ? "The server does not answer" : "";
    if (message.kind === "open" || message.kind === "lost") document.getElementById("connection").textContent = text;
    hear(message);
  };
  let end = null;
  const begin = () => {
    if (end) return;
    if ("SharedWorker" in window) {
      const worker = new SharedWorker("/static/updates.js", { type: "module", name: "updates" });
      worker.port.onmessage = (event) => say(event.data);
      end = () => { worker.port.postMessage("bye"); worker.port.close(); };
      worker.onerror = () => { end?.(); end = follow(say); }; // its script could not be loaded
    } else {
      end = follow(say);
    }
  };
  addEventListener("pagehide", () => { end?.(); end = null; });
  addEventListener("pageshow", (event) => { if (event.persisted) begin(); });
  begin();
}
