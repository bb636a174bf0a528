// What the page knows of the service: all rows, the service at a glance and recent lines of histories, kept up to date
// by one event stream. Whoever shows something subscribes; changes are handed on once per frame.

import { get, secret } from "./api.js";
import { useEffect, useState } from "./dom.js";
import { follow } from "./stream.js";

export const MAX_LINES = 200;

export const store = {
  loaded: false,
  connection: "connecting", // connecting, live, broken
  columns: [],
  rows: new Map(), // id → row as an object
  status: {},
  lines: [],
  moves: 0, // grows when a job gets or loses slots
  offset: 0, // the service's clock minus the browser's, in seconds
  version: 0,
  session: null,
};

export const now = () => Date.now() / 1000 + store.offset;

const listeners = new Set();
let scheduled = false;

export function changed() {
  store.version++;
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    for (const listener of listeners) listener();
  });
}

// Draw again whenever the store has changed.
export function useStore() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return store;
}

const asObject = (row) => Object.fromEntries(store.columns.map((name, i) => [name, row[i]]));

let lastId = null;
let loading = null;
let stale = false; // what is being read may be old already
const waiting = []; // changes that came while the rows were being read

async function load() {
  const answer = await get("rows?all=true");
  store.columns = answer.columns;
  store.rows = new Map(answer.rows.map((row) => [row[0], asObject(row)]));
  store.status = answer.status;
  store.lines = answer.lines;
  store.moves++;
  store.offset = answer.now_s - Date.now() / 1000;
  store.loaded = true;
  lastId = answer.last_id;
  for (const message of waiting.splice(0)) apply(message);
  changed();
  // For `geminid bench page`: when the rows were on the screen.
  requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("geminid-rows")));
}

export function reload() {
  if (loading) {
    stale = true;
    return loading;
  }
  stale = false;
  loading = load()
    .catch((problem) => {
      if (problem.status !== 401) setTimeout(reload, 1500);
    })
    .finally(() => {
      loading = null;
      if (stale) reload();
    });
  return loading;
}

const sequence = (id) => {
  const [process, n] = (id ?? "").split(".");
  return [process, Number(n)];
};

function apply({ id, data }) {
  const [process, n] = sequence(id);
  const [known, last] = sequence(lastId);
  if (process === known && n <= last) return; // the rows say so already
  if (process !== known || n !== last + 1) {
    reload();
    return;
  }
  lastId = id;
  for (const row of data.new ?? []) store.rows.set(row[0], asObject(row));
  if (data.new || data.gone) store.moves++;
  for (const [job, fields] of Object.entries(data.changed ?? {})) {
    const row = store.rows.get(job);
    if ("slots" in fields || "phase" in fields) store.moves++;
    if (row) store.rows.set(job, { ...row, ...fields });
  }
  for (const job of data.gone ?? []) store.rows.delete(job);
  if (data.lines) store.lines = [...store.lines, ...data.lines].slice(-MAX_LINES);
  if (data.status) store.status = data.status;
  changed();
}

function hear({ kind, ...message }) {
  if (kind === "change") {
    store.connection = "live";
    if (loading || !store.loaded) waiting.push(message);
    else apply(message);
  } else if (kind === "reset" || kind === "denied") reload(); // the answer says why it is denied
  else if (kind === "open" || kind === "broken") {
    store.connection = kind === "open" ? "live" : "broken";
    changed();
  }
}

// Trusted types: the one script that the page starts by name.
const policy = globalThis.trustedTypes?.createPolicy("geminid", {
  createScriptURL: (url) => {
    if (url !== "/static/stream-worker.js") throw new TypeError(`not a script of this page: ${url}`);
    return url;
  },
});
const workerUrl = policy ? policy.createScriptURL("/static/stream-worker.js") : "/static/stream-worker.js";

// Tells the reader of the stream whether this tab is shown, and with which secret; null when the tab goes away.
function watchInWorker(failed) {
  const worker = new SharedWorker(workerUrl, { name: "geminid-events", type: "module" });
  worker.onerror = failed;
  worker.port.onmessage = ({ data }) => hear(data);
  return (shown) => worker.port.postMessage(shown === null ? { kind: "bye" } : { kind: "shown", shown, secret: secret() });
}

// Where the browser has no shared workers, or the service was away when one began: a stream of this tab's own.
function watchAlone() {
  let close = null;
  let used = "";
  return (shown) => {
    if (close && (!shown || used !== secret())) {
      close();
      close = null;
    }
    used = secret();
    if (shown) close ??= follow(used, lastId, hear);
  };
}

let say = null;

function watch() {
  if (say) return say(!document.hidden);
  const alone = () => {
    say = watchAlone();
    say(!document.hidden);
  };
  if (globalThis.SharedWorker) {
    say = watchInWorker(alone);
    say(!document.hidden);
  } else alone();
  document.addEventListener("visibilitychange", () => {
    say(!document.hidden);
    if (!document.hidden) reload(); // what changed while nobody looked
  });
  addEventListener("pagehide", () => say(null));
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    say(!document.hidden);
    reload();
  });
}

export async function begin() {
  const read = reload();
  store.session = await get("session", { quiet: true });
  await read;
  watch();
  changed();
}
