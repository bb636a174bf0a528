// One event stream for all tabs: a browser opens at most six connections to a service. Pages say whether they are shown;
// the stream is closed while none is.

const ports = new Map(); // port → { shown, lastId }
let source = null;
let lastId = null;

function broadcast(message) {
  for (const port of ports.keys()) port.postMessage(message);
}

function wanted() {
  for (const page of ports.values()) if (page.shown) return true;
  return false;
}

function connect() {
  if (source || !wanted()) return;
  source = new EventSource(`/api/v1/stream?after=${encodeURIComponent(lastId ?? "")}`);
  source.onopen = () => broadcast({ kind: "open" });
  source.onerror = () => {
    broadcast({ kind: "broken" });
    if (source && source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(connect, 1500);
    }
  };
  source.onmessage = (event) => {
    lastId = event.lastEventId;
    broadcast({ kind: "change", id: event.lastEventId, data: JSON.parse(event.data) });
  };
  source.addEventListener("reset", (event) => {
    lastId = event.lastEventId;
    broadcast({ kind: "reset", id: event.lastEventId });
  });
}

function close() {
  if (source) source.close();
  source = null;
  broadcast({ kind: "closed" });
}

onconnect = (event) => {
  const port = event.ports[0];
  ports.set(port, { shown: true });
  port.onmessage = ({ data }) => {
    if (data.kind === "bye") ports.delete(port);
    else ports.get(port).shown = data.shown;
    if (wanted()) connect();
    else close();
  };
  port.start();
  connect();
};
