// What happens now: slots over time, the queue with reasons and forecasts, prices and the certificate, recent events.

import { html, useMemo } from "../dom.js";
import { Meter, Phase, Problem, Table, sorted, useAnswer } from "../parts.js";
import { Link, go, useParameter, useSorting } from "../router.js";
import { SlotLanes } from "../slots.js";
import { now, useStore } from "../store.js";
import { ahead, clock, count, duration, moment, number, percent, plural, slotRange } from "../text.js";

const NODES_EVERY_MS = 10000;

const COLUMNS = [
  { key: "id", title: "job", cell: (row) => html`<${Link} to=${`/jobs/${row.id}`}>${row.id}<//>`, sort: (row) => Number(row.id.slice(1)) },
  { key: "name", title: "name", cell: (row) => html`<span title=${row.name}>${row.name}</span>`, sort: (row) => row.name },
  { key: "phase", title: "state", cell: (row) => html`<${Phase} phase=${row.phase} />`, sort: (row) => row.phase },
  { key: "slots", title: "slots", num: true, cell: (row) => slotsText(row), sort: (row) => row.slots },
  { key: "position", title: "position", num: true, cell: (row) => row.position ?? "", sort: (row) => row.position },
  { key: "done", title: "done", cell: (row) => html`<${Meter} share=${row.done} />`, sort: (row) => row.done },
  { key: "starts", title: "starts in", cell: (row) => (row.slots ? "" : ahead(row.start_s, now())), sort: (row) => row.start_s?.[0] },
  { key: "ends", title: "finishes in", cell: (row) => ahead(row.finish_s, now()), sort: (row) => row.finish_s?.[0] },
  { key: "reason", title: "reason", cell: (row) => html`<span title=${row.reason}>${row.reason}</span>`, sort: (row) => row.reason },
  { key: "owner", title: "owner", cell: (row) => row.owner ?? "", sort: (row) => row.owner },
  { key: "needs", title: "may have", cell: slotRange, sort: (row) => row.min_slots },
  { key: "batch", title: "batch", num: true, cell: (row) => count(row.batch), sort: (row) => row.batch },
  { key: "priority", title: "priority", num: true, cell: (row) => row.priority, sort: (row) => row.priority },
  { key: "age", title: "age", num: true, cell: (row) => duration(now() - row.submitted_at_s), sort: (row) => -row.submitted_at_s },
];

const slotsText = (row) => (row.target_slots && row.target_slots !== row.slots ? `${row.slots} → ${row.target_slots}` : `${row.slots}`);

export function Now() {
  const store = useStore();
  const nodes = useAnswer("nodes", NODES_EVERY_MS);
  const [filter, setFilter] = useParameter("find");
  const [owner, setOwner] = useParameter("owner");
  const [sorting, setSorting] = useSorting();
  const active = useMemo(() => [...store.rows.values()].filter((row) => row.finished_at_s === null), [store.version]);
  const owners = useMemo(() => [...new Set(active.map((row) => row.owner))].sort(), [store.version]);
  const wanted = filter.toLowerCase();
  const matching = active.filter(
    (row) =>
      (!owner || row.owner === owner) &&
      (!wanted || `${row.id} ${row.name} ${row.owner} ${row.phase} ${row.queue}`.toLowerCase().includes(wanted)),
  );
  const ordered = sorting[0]
    ? sorted(matching, COLUMNS, sorting)
    : [...matching].sort((a, b) => (b.slots > 0) - (a.slots > 0) || (a.position ?? 1e9) - (b.position ?? 1e9) || a.submitted_at_s - b.submitted_at_s);
  const waiting = active.filter((row) => !row.slots).length;
  const status = store.status;
  return html`<div>
    <h1>Now</h1>
    <dl class="facts">
      <div><dt>slots in use</dt><dd><${Meter} share=${status.slots ? status.slots_held / status.slots : 0} label=${`${status.slots_held ?? 0} of ${status.slots ?? 0}`} /></dd></div>
      <div><dt>jobs</dt><dd>${plural(active.length - waiting, "running job")}, ${count(waiting)} waiting</dd></div>
      <div><dt>policy</dt><dd><code>${status.policy}</code></dd></div>
      <div><dt>certificate</dt><dd>${status.gap === null || status.gap === undefined ? "none yet" : `within ${percent(status.gap, 2)} of the optimum`}</dd></div>
      <div><dt>price of a slot</dt><dd>${prices(status.prices)}</dd></div>
      <div><dt>decisions</dt><dd>${count(status.decisions ?? 0)}</dd></div>
    </dl>
    <${Problem} text=${status.trouble || nodes.problem} />
    ${status.ending && html`<p class="problem" role="alert">The service is ending.</p>`}
    <h2>Slots over time</h2>
    <${SlotLanes} nodes=${nodes.data} />
    <h2>Jobs</h2>
    <div class="bar">
      <label>find <input id="find" type="search" value=${filter} onInput=${(event) => setFilter(event.currentTarget.value)} placeholder="job, name, owner, state" /></label>
      <label>owner <select value=${owner} onChange=${(event) => setOwner(event.currentTarget.value)}><option value="">everybody</option>${owners.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <span class="note" aria-live="polite">${plural(ordered.length, "job")}</span>
      <span class="push cmd"><code>geminid queue</code></span>
    </div>
    <${Table} label="Jobs that run or wait" columns=${COLUMNS} rows=${ordered} sorting=${sorting} setSorting=${setSorting} onOpen=${(row) => go(`/jobs/${row.id}`)} empty="No job runs or waits. geminid submit -- python train.py submits one." />
    <h2>Recent events</h2>
    <ul class="lines" tabindex="0" aria-label="Recent events">
      ${status.notes?.map((note) => html`<li><time title=${moment(note.at_s)}>${clock(note.at_s, now())}</time><strong>${note.level}</strong> ${note.text}</li>`)}
      ${[...store.lines].reverse().slice(0, 60).map(
        (line) => html`<li><time title=${moment(line.at_s)}>${clock(line.at_s, now())}</time><${Link} to=${`/jobs/${line.job}`}>${line.job}<//> ${line.text}</li>`,
      )}
      ${!store.lines.length && !status.notes?.length && html`<li class="note">Nothing has happened yet.</li>`}
    </ul>
    <p class="cmd"><code>geminid events</code></p>
  </div>`;
}

function prices(found) {
  const entries = Object.entries(found ?? {});
  return entries.length ? entries.map(([type, price]) => `${type} ${number(price, 3)}`).join(", ") : "none yet";
}
