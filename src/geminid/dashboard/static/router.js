// Addresses of the page: /jobs/j7 and the like, changed without loading it again.

import { html, useLayoutEffect, useState } from "./dom.js";

export function go(path) {
  if (path !== location.pathname + location.search) history.pushState(null, "", path);
  dispatchEvent(new Event("geminid-address"));
}

// The address as it is at every drawing; it is drawn again when the address changes.
export function useAddress() {
  const [, draw] = useState(0);
  useLayoutEffect(() => {
    const again = () => draw((n) => n + 1);
    addEventListener("popstate", again);
    addEventListener("geminid-address", again);
    return () => {
      removeEventListener("popstate", again);
      removeEventListener("geminid-address", again);
    };
  }, []);
  return { path: location.pathname, search: new URLSearchParams(location.search) };
}

export function Link({ to, children, ...rest }) {
  const click = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${to} onClick=${click} ...${rest}>${children}</a>`;
}

// A value that is part of the address, so that a link shows the same view: ?owner=ann.
export function useParameter(name, initial = "") {
  const { search } = useAddress();
  const set = (value) => {
    const next = new URLSearchParams(location.search);
    if (value === initial || value === "") next.delete(name);
    else next.set(name, value);
    const text = next.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
    dispatchEvent(new Event("geminid-address"));
  };
  return [search.get(name) ?? initial, set];
}
