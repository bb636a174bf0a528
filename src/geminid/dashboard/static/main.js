// The page: its frame, its addresses and its keys.

import { ask, keepSecret } from "./api.js";
import { html, render, useEffect, useRef, useState } from "./dom.js";
import { History } from "./pages/history.js";
import { Job } from "./pages/job.js";
import { Login } from "./pages/login.js";
import { Nodes } from "./pages/nodes.js";
import { Now } from "./pages/now.js";
import { Users } from "./pages/users.js";
import { WhatIf } from "./pages/whatif.js";
import { Problem } from "./parts.js";
import { Link, go, useAddress } from "./router.js";
import { begin, store, useStore } from "./store.js";
import { timeZone } from "./text.js";

const PLACES = [
  ["/", "Now", "n"],
  ["/nodes", "Nodes", "o"],
  ["/users", "Users", "u"],
  ["/what-if", "What if", "w"],
  ["/history", "History", "h"],
];

const CONNECTIONS = { live: "live", broken: "reconnecting", connecting: "connecting" };

function page(path) {
  const job = path.match(/^\/jobs\/([\w.-]+)$/);
  if (job) return [job[1], html`<${Job} key=${job[1]} id=${job[1]} />`];
  if (path === "/nodes") return ["Nodes", html`<${Nodes} />`];
  if (path === "/users") return ["Users", html`<${Users} />`];
  if (path === "/what-if") return ["What if", html`<${WhatIf} />`];
  if (path === "/history") return ["History", html`<${History} />`];
  return ["Now", html`<${Now} />`];
}

function Help({ dialog }) {
  return html`<dialog ref=${dialog} aria-label="Keys">
    <h2>Keys</h2>
    <dl class="keys">
      <dt><kbd>/</kbd></dt><dd>find</dd>
      <dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>next and previous row of a table that has the focus</dd>
      <dt><kbd>Enter</kbd></dt><dd>open the chosen row</dd>
      ${PLACES.map(([, name, key]) => html`<dt><kbd>g</kbd> <kbd>${key}</kbd></dt><dd>go to ${name}</dd>`)}
      <dt><kbd>?</kbd></dt><dd>this list</dd>
    </dl>
    <button type="button" onClick=${() => dialog.current.close()}>Close</button>
  </dialog>`;
}

function useKeys(dialog) {
  useEffect(() => {
    let before = "";
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
      if (event.key === "/") {
        document.getElementById("find")?.focus();
        event.preventDefault();
      } else if (event.key === "?") dialog.current?.showModal();
      else if (before === "g") {
        const place = PLACES.find(([, , key]) => key === event.key);
        if (place) go(place[0]);
      }
      before = event.key;
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

function App() {
  useStore();
  const { path } = useAddress();
  const [problem, setProblem] = useState("");
  const dialog = useRef(null);
  useKeys(dialog);
  useEffect(() => {
    const out = () => {
      store.session = null;
      if (location.pathname !== "/login") {
        sessionStorage.setItem("geminid-next", location.pathname + location.search);
        go("/login");
      }
    };
    addEventListener("geminid-logged-out", out);
    return () => removeEventListener("geminid-logged-out", out);
  }, []);
  // Without a session, ask for it: at the first page, and when somebody comes back from the log-in.
  useEffect(() => {
    if (path === "/login" || store.session) return undefined;
    let timer = 0;
    const enter = () =>
      begin()
        .then(() => setProblem(""))
        .catch((trouble) => {
          if (trouble.status === 401) dispatchEvent(new CustomEvent("geminid-logged-out"));
          else {
            const hint = trouble.status === 403 ? " (geminid up --public-url names the address that you use)" : "";
            setProblem(trouble.message + hint);
            timer = setTimeout(enter, 2000);
          }
        });
    enter();
    return () => clearTimeout(timer);
  }, [path]);
  const [title, shown] = page(path);
  useEffect(() => {
    document.title = path === "/login" ? "Log in · Geminid" : `${title} · Geminid`;
  }, [title, path]);
  if (path === "/login") return html`<${Login} />`;
  const logOut = async () => {
    await ask("DELETE", "session");
    keepSecret("");
    dispatchEvent(new CustomEvent("geminid-logged-out"));
  };
  return html`
    <a class="skip" href="#content">To the content</a>
    <header class="top">
      <${Link} to="/" class="brand">Geminid<//>
      <nav aria-label="Pages">${PLACES.map(([to, name]) => html`<${Link} to=${to} aria-current=${path === to ? "page" : undefined}>${name}<//>`)}</nav>
      <span class="push">
        <span class=${`connection ${store.connection}`} role="status">${CONNECTIONS[store.connection]}</span>
        <span class="note" title="times are in this zone">${timeZone}</span>
        ${store.session && html`<span>${store.session.user} (${store.session.role})</span><button type="button" onClick=${logOut}>Log out</button>`}
        <button type="button" aria-label="Keys" onClick=${() => dialog.current.showModal()}>?</button>
      </span>
    </header>
    <main id="content">${store.session ? shown : html`<p class="note">Reading …</p><${Problem} text=${problem} />`}</main>
    <${Help} dialog=${dialog} />
  `;
}

render(html`<${App} />`, document.getElementById("app"));
