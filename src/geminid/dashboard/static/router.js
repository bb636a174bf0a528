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

// Values that are part of the address, so that a link shows the same view: ?owner=ann&sort=name.
export function useParameters(...names) {
  const { search } = useAddress();
  const values = Object.fromEntries(names.map((name) => [name, search.get(name) ?? ""]));
  const set = (changes) => {
    const next = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) value === "" ? next.delete(name) : next.set(name, value);
    const text = next.size ? `?${next}` : "";
    if (text === location.search) return;
    history.replaceState(null, "", location.pathname + text);
    dispatchEvent(new Event("geminid-address"));
  };
  return [values, set];
}

export function useParameter(name, initial = "") {
  const [values, set] = useParameters(name);
  return [values[name] || initial, (value) => set({ [name]: value === initial ? "" : value })];
}

// How a table is sorted, as in ?sort=name and ?sort=-name.
export function useSorting() {
  const [text, set] = useParameter("sort");
  const key = text.replace(/^-/, "");
  return [[key, text === key ? 1 : -1], ([to, order]) => set(order < 0 ? `-${to}` : to)];
}
