// One event stream for all tabs: a browser opens at most six connections to a service. Pages say whether they are shown;
// the stream is closed while none is.

import { follow } from "./stream.js";

const pages = new Map(); // port → whether the page is shown
let secret = "";
let close = null;
let open = false;
let lastId = null;

function hear(message) {
  if (message.id) lastId = message.id;
  if (message.kind === "open") open = true;
  else if (message.kind === "broken" || message.kind === "denied") open = false;
  for (const port of pages.keys()) port.postMessage(message);
}

function settle() {
  const wanted = secret && [...pages.values()].some(Boolean);
  if (wanted) close ??= follow(secret, lastId, hear);
  else if (close) {
    close();
    close = null;
    open = false;
  }
}

onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data.kind === "bye") pages.delete(port);
    else {
      pages.set(port, data.shown);
      if (data.secret !== secret) {
        // somebody has logged in again
        close?.();
        close = null;
        secret = data.secret;
      }
      if (open) port.postMessage({ kind: "open" });
    }
    settle();
  };
  port.onclose = () => {
    pages.delete(port);
    settle();
  };
};
