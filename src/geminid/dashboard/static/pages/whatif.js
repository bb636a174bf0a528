// What if: the live jobs simulated to their end, as things are and with something changed.

import { ask } from "../api.js";
import { html, useState } from "../dom.js";
import { Problem, Table, quoted } from "../parts.js";
import { useParameter } from "../router.js";
import { duration, number, percent, plural } from "../text.js";

const FIGURES = [
  ["avg_jct_s", "mean completion time", duration],
  ["median_jct_s", "median completion time", duration],
  ["p99_jct_s", "99th percentile", duration],
  ["makespan_s", "until all are done", duration],
  ["gpu_hours", "slot-hours", (value) => number(value, 3)],
  ["utilization", "utilisation", (value) => percent(value)],
];

export function WhatIf() {
  const [policy, setPolicy] = useParameter("policy");
  const [cluster, setCluster] = useParameter("cluster");
  const [slots, setSlots] = useParameter("slots");
  const [minutes, setMinutes] = useParameter("minutes");
  const [answer, setAnswer] = useState(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const simulate = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      const change = {
        ...(policy && { policy }),
        ...(cluster && { cluster }),
        ...(slots && { job: { slots: Number(slots), seconds: 60 * Number(minutes || 10) } }),
      };
      setAnswer(await ask("POST", "what-if", change));
    } catch (trouble) {
      setProblem(trouble.message);
    } finally {
      setBusy(false);
    }
  };
  const command = `geminid simulate --from-live${policy ? ` --policy ${quoted(policy)}` : ""}${cluster ? ` --cluster ${quoted(cluster)}` : ""}${slots ? ` --extra-job ${slots}x${minutes || 10}m` : ""}`;
  return html`<div>
    <h1>What if …</h1>
    <p class="note">The jobs that run and wait now are simulated to their end at the speeds that they have measured: once as things are, and once with your change. Nothing real is touched.</p>
    <form class="grid" onSubmit=${simulate}>
      <label>another policy <input value=${policy} onInput=${(event) => setPolicy(event.currentTarget.value)} placeholder="sia, fifo, geminid:gap=2 …" /></label>
      <label>another cluster <input value=${cluster} onInput=${(event) => setCluster(event.currentTarget.value)} placeholder="type:nodes×slots, such as cpu:2x8" /></label>
      <div class="bar">
        <label>one job more, of <input type="number" min="1" value=${slots} onInput=${(event) => setSlots(event.currentTarget.value)} /> slots</label>
        <label>for <input type="number" min="1" value=${minutes} onInput=${(event) => setMinutes(event.currentTarget.value)} placeholder="10" /> minutes</label>
      </div>
      <div class="bar"><button disabled=${busy || !(policy || cluster || slots)}>${busy ? "Simulating …" : "Simulate"}</button><span class="cmd"><code>${command}</code></span></div>
    </form>
    <${Problem} text=${problem} />
    ${answer && html`<${Comparison} answer=${answer} />`}
  </div>`;
}

function Comparison({ answer }) {
  const { before, after, jobs, notes } = answer;
  const change = (name) => (before[name] ? `${after[name] >= before[name] ? "+" : "−"}${Math.abs(100 * (after[name] / before[name] - 1)).toFixed(1)} %` : "–");
  const rows = jobs.map((job) => ({ ...job, key: job.id, gain: job.before_s === null || job.before_s === undefined ? null : job.after_s - job.before_s }));
  return html`<div>
    <h2>Before and after</h2>
    <div class="table" tabindex="0" role="region" aria-label="Before and after"><table>
      <thead><tr><th scope="col"></th><th scope="col" class="num">as it is</th><th scope="col" class="num">with the change</th><th scope="col" class="num">difference</th></tr></thead>
      <tbody>
        <tr><th scope="row">policy</th><td class="num"><code>${before.policy}</code></td><td class="num"><code>${after.policy}</code></td><td></td></tr>
        <tr><th scope="row">slots</th><td class="num">${before.slots}</td><td class="num">${after.slots}</td><td></td></tr>
        ${FIGURES.map(([name, title, show]) => html`<tr><th scope="row">${title}</th><td class="num">${show(before[name])}</td><td class="num">${show(after[name])}</td><td class="num">${change(name)}</td></tr>`)}
      </tbody>
    </table></div>
    <h2>${plural(jobs.length, "job")}</h2>
    <${Table} label="Jobs, before and after" rows=${rows} columns=${[
      { key: "id", title: "job", cell: (row) => row.id },
      { key: "name", title: "name", cell: (row) => row.name },
      { key: "before", title: "finishes after", num: true, cell: (row) => duration(row.before_s) },
      { key: "after", title: "with the change", num: true, cell: (row) => duration(row.after_s) },
      { key: "gain", title: "difference", num: true, cell: (row) => (row.gain === null ? "–" : `${row.gain >= 0 ? "+" : "−"}${duration(Math.abs(row.gain))}`) },
    ]} />
    ${notes.map((note) => html`<p class="note">${note}</p>`)}
  </div>`;
}
