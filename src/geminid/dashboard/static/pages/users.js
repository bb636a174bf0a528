// Users and queues: shares beside entitlements, finish-time fairness, quotas, and what was used in each period.

import { html } from "../dom.js";
import { Meter, Problem, Table, useAnswer } from "../parts.js";
import { useParameter } from "../router.js";
import { moment, number, period } from "../text.js";

const REFRESH_MS = 5000;
const ratio = (value) => (value === null || value === undefined ? "–" : number(value, 3));

export function Users() {
  const shares = useAnswer("fairness", REFRESH_MS);
  const usage = useAnswer("usage", REFRESH_MS);
  const quotas = useAnswer("quotas", REFRESH_MS);
  const queues = useAnswer("queues", REFRESH_MS);
  const [length, setLength] = useParameter("period", "day");
  const zone = -60 * new Date().getTimezoneOffset();
  const periods = useAnswer(`usage/periods?period=${length}&periods=${length === "hour" ? 24 : 14}&zone_s=${zone}`, 4 * REFRESH_MS);
  const used = new Map((usage.data ?? []).map((row) => [row.owner, row]));
  const columns = [
    { key: "owner", title: "owner", cell: (row) => row.owner || "nobody" },
    { key: "slots", title: "slots now", num: true, cell: (row) => row.slots },
    { key: "entitled", title: "equal share", num: true, cell: (row) => number(row.entitled_slots, 3) },
    { key: "share", title: "of the share", cell: (row) => html`<${Meter} share=${row.entitled_slots ? Math.min(row.slots / row.entitled_slots, 1) : null} label=${row.entitled_slots ? `${Math.round((100 * row.slots) / row.entitled_slots)} %` : "–"} />` },
    { key: "running", title: "running", num: true, cell: (row) => used.get(row.owner)?.running ?? 0 },
    { key: "waiting", title: "waiting", num: true, cell: (row) => used.get(row.owner)?.waiting ?? 0 },
    { key: "hours", title: "slot-hours", num: true, cell: (row) => number(used.get(row.owner)?.gpu_hours ?? row.slot_hours, 3) },
    { key: "ended", title: "jobs ended", num: true, cell: (row) => row.jobs_ended },
    { key: "mean", title: "mean finish-time ratio", num: true, cell: (row) => ratio(row.mean_finish_time_ratio) },
    { key: "worst", title: "worst", num: true, cell: (row) => ratio(row.worst_finish_time_ratio) },
  ];
  return html`<div>
    <h1>Users and queues</h1>
    <${Problem} text=${shares.problem || usage.problem || quotas.problem} />
    <${Table} label="Shares of users" columns=${columns} rows=${(shares.data ?? []).map((row) => ({ ...row, key: row.owner }))} windowed=${false} empty="Nobody has submitted a job yet." />
    <p class="note">A finish-time ratio above 1 means that the user's jobs took longer than they would have on an equal share of the cluster.</p>
    <p class="cmd"><code>geminid usage</code></p>
    <h2>Quotas</h2>
    <${Table} label="Quotas" windowed=${false} empty="There are no quotas." rows=${(quotas.data ?? []).map((row) => ({ ...row, key: `${row.of} ${row.name}` }))} columns=${[
      { key: "of", title: "of", cell: (row) => `${row.of} ${row.name}` },
      { key: "slots", title: "slots", num: true, cell: (row) => row.slots },
      { key: "used", title: "in use", cell: (row) => html`<${Meter} share=${row.slots ? Math.min(row.used / row.slots, 1) : 1} label=${`${row.used}`} />` },
      { key: "borrow", title: "may borrow", cell: (row) => (row.borrow ? `yes${row.beyond ? `, ${row.beyond} beyond it now` : ""}` : "no") },
    ]} />
    <p class="cmd"><code>geminid quota</code></p>
    <h2>Queues with rules</h2>
    <${Table} label="Queues" windowed=${false} empty="Everybody may use every queue." rows=${(queues.data ?? []).map((row) => ({ ...row, key: row.queue }))} columns=${[
      { key: "queue", title: "queue", cell: (row) => row.queue },
      { key: "members", title: "members", cell: (row) => (row.open ? "everybody" : (row.members ?? []).join(", ") || "admins only") },
      { key: "priority", title: "highest priority", num: true, cell: (row) => row.max_priority ?? 0 },
    ]} />
    <h2>Slot-hours by period</h2>
    <div class="bar"><label>period <select value=${length} onChange=${(event) => setLength(event.currentTarget.value)}><option value="hour">hour</option><option value="day">day</option><option value="week">week</option></select></label></div>
    <${Periods} data=${periods.data} />
  </div>`;
}

function Periods({ data }) {
  if (!data) return html`<p class="note">Reading …</p>`;
  const owners = Object.keys(data.slot_hours);
  const rows = data.starts_s.map((at, i) => ({ key: at, at, hours: owners.map((owner) => data.slot_hours[owner][i]) })).reverse();
  const columns = [
    { key: "at", title: "from", cell: (row) => (data.period_s < 86400 ? moment : period)(row.at) },
    ...owners.map((owner, k) => ({ key: owner, title: owner || "nobody", num: true, cell: (row) => number(row.hours[k], 3) })),
    { key: "all", title: "together", num: true, cell: (row) => number(row.hours.reduce((a, b) => a + b, 0), 3) },
  ];
  return html`<${Table} label="Slot-hours by period" columns=${columns} rows=${rows} windowed=${false} empty="Nothing was used yet." />`;
}
