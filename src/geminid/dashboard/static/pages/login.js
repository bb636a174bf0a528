// Logging in: with the one-time code of a link, or with a token.

import { ask, keepSecret } from "../api.js";
import { html, useEffect, useState } from "../dom.js";
import { Problem } from "../parts.js";
import { go } from "../router.js";
import { begin } from "../store.js";

export function Login() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const enter = async (secret) => {
    setBusy(true);
    try {
      keepSecret((await ask("POST", "session", secret, { quiet: true })).secret);
      await begin();
      const next = sessionStorage.getItem("geminid-next") ?? "/";
      sessionStorage.removeItem("geminid-next");
      go(next.startsWith("/") && !next.startsWith("//") ? next : "/");
    } catch (trouble) {
      setProblem(trouble.message);
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => {
    const follow = () => {
      const code = location.hash.slice(1);
      if (!code) return;
      history.replaceState(null, "", "/login"); // the code leaves the address, and the history with it
      enter({ code });
    };
    follow();
    addEventListener("hashchange", follow); // a link that is opened where this page is open already
    return () => removeEventListener("hashchange", follow);
  }, []);
  return html`<main id="content" class="login">
    <h1>Log in to Geminid</h1>
    <p>On the machine of the service, <code>geminid open</code> prints a link that logs you in.</p>
    <form class="grid" onSubmit=${(event) => { event.preventDefault(); enter({ token: token.trim() }); }}>
      <label>Or with a token <input type="password" autocomplete="off" value=${token} onInput=${(event) => setToken(event.currentTarget.value)} /></label>
      <div class="bar"><button disabled=${busy || !token.trim()}>Log in</button></div>
    </form>
    <${Problem} text=${problem} />
  </main>`;
}
