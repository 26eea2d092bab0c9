// A worker that all tabs share: one stream from the server, however many tabs are open. (A browser
// opens at most six connections to a server, and every stream keeps one.)

import { follow } from "./stream.js";

const ports = new Set();
let close = null;
let runs = new Map();
let rest = null;
let skew = 0; // seconds by which the server's clock is ahead
let connected = null;

function tell(message) {
  for (const port of ports) port.postMessage(message);
}

function all() {
  return { kind: "all", data: { ...rest, now: Date.now() / 1000 + skew, runs: [...runs.values()] } };
}

function hear(message) {
  if (message.kind === "all") {
    rest = { ...message.data, runs: null };
    skew = rest.now - Date.now() / 1000;
    runs = new Map(message.data.runs.map((run) => [run.name, run]));
  } else if (message.kind === "change") {
    for (const name of message.data.gone) runs.delete(name);
    for (const run of message.data.runs) runs.set(run.name, run);
  } else {
    connected = message.kind;
  }
  tell(message);
}

onconnect = (event) => {
  const port = event.ports[0];
  ports.add(port);
  port.onmessage = () => {  // the page goes away
    ports.delete(port);
    if (ports.size === 0 && close) {
      close();
      close = rest = connected = null;
    }
  };
  if (rest) port.postMessage(all());
  if (connected) port.postMessage({ kind: connected });
  close ??= follow(hear);
};
