// Jobs that are over: filters, paging and export.

import { ask, get, query } from "../api.js";
import { html, useEffect, useState } from "../dom.js";
import { Phase, Problem, Table, quoted } from "../parts.js";
import { Link, go, useParameter } from "../router.js";
import { store, useStore } from "../store.js";
import { duration, moment, number, plural } from "../text.js";

const PAGE = 200;

const COLUMNS = [
  { key: "id", title: "job", cell: (row) => html`<${Link} to=${`/jobs/${row.id}`}>${row.id}<//>` },
  { key: "name", title: "name", cell: (row) => html`<span title=${row.name}>${row.name}</span>` },
  { key: "owner", title: "owner", cell: (row) => row.owner },
  { key: "queue", title: "queue", cell: (row) => row.queue },
  { key: "phase", title: "end", cell: (row) => html`<${Phase} phase=${row.phase} />` },
  { key: "finished", title: "ended", cell: (row) => moment(row.finished_at_s) },
  { key: "jct", title: "took", num: true, cell: (row) => duration(row.jct_s) },
  { key: "hours", title: "slot-hours", num: true, cell: (row) => number(row.gpu_s / 3600, 3) },
  { key: "rescales", title: "resizes", num: true, cell: (row) => row.rescales },
  { key: "failures", title: "failures", num: true, cell: (row) => row.failures },
  { key: "reason", title: "reason", cell: (row) => html`<span title=${row.reason}>${row.reason}</span>` },
];

export function History() {
  useStore();
  const [name, setName] = useParameter("name");
  const [owner, setOwner] = useParameter("owner");
  const [state, setState] = useParameter("state");
  const [days, setDays] = useParameter("days");
  const [found, setFound] = useState({ jobs: [], total: 0 });
  const [problem, setProblem] = useState("");
  const from = days ? Date.now() / 1000 + store.offset - Number(days) * 86400 : null;
  const asked = (extra) => query({ name, owner, state, from, ...extra });
  const over = [...store.rows.values()].filter((row) => row.finished_at_s !== null).length;
  const read = (after) =>
    ask("GET", `history?${asked({ after, limit: PAGE })}`, undefined, { raw: true })
      .then(async (answer) => {
        const jobs = await answer.json();
        setFound((old) => ({ jobs: after ? [...old.jobs, ...jobs] : jobs, total: Number(answer.headers.get("X-Total-Count")) }));
        setProblem("");
      })
      .catch((trouble) => setProblem(trouble.message));
  useEffect(() => {
    read(0);
  }, [name, owner, state, days, over]);
  const save = async (format) => {
    const answer = await get(`history?${asked({ limit: 10000, format })}`, { raw: true });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `geminid-history.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const chosen = Object.entries({ name, owner, state, days }).filter(([, value]) => value);
  const command = ["geminid history", ...chosen.map(([option, value]) => `--${option} ${quoted(value)}`)].join(" ");
  return html`<div>
    <h1>History</h1>
    <div class="bar">
      <label>name <input id="find" type="search" value=${name} onInput=${(event) => setName(event.currentTarget.value)} /></label>
      <label>owner <input type="search" value=${owner} onInput=${(event) => setOwner(event.currentTarget.value)} /></label>
      <label>end <select aria-label="end" value=${state} onChange=${(event) => setState(event.currentTarget.value)}><option value="">any</option><option>succeeded</option><option>failed</option><option>cancelled</option></select></label>
      <label>ended within <select aria-label="ended within" value=${days} onChange=${(event) => setDays(event.currentTarget.value)}><option value="">any time</option><option value="1">a day</option><option value="7">a week</option><option value="30">30 days</option></select></label>
      <span class="note" aria-live="polite">${plural(found.total, "job")}</span>
      <span class="push"></span>
      <button type="button" onClick=${() => save("csv")}>Export CSV</button>
      <button type="button" onClick=${() => save("json")}>Export JSON</button>
    </div>
    <${Problem} text=${problem} />
    <${Table} label="Jobs that are over" columns=${COLUMNS} rows=${found.jobs} onOpen=${(row) => go(`/jobs/${row.id}`)} empty="No job like this has ended, or it is not kept any more." />
    ${found.jobs.length < found.total && html`<button type="button" onClick=${() => read(found.jobs.length)}>Show more</button>`}
    <p class="cmd"><code>${command}</code></p>
  </div>`;
}
