// One job: its curves, why it has the size it has, its logs and history, and what can be done about it.

import { get, query } from "../api.js";
import { Curves } from "../curves.js";
import { html, useEffect, useMemo, useRef, useState } from "../dom.js";
import { Action, Meter, Phase, Problem, useAnswer } from "../parts.js";
import { now, useStore } from "../store.js";
import { ahead, count, duration, moment, number, percent, plural, slotRange } from "../text.js";

const REFRESH_MS = 2000;
const LOG_LIMIT = 400_000; // characters kept of a followed log
const LOG_EVERY_MS = 1500;

export function Job({ id }) {
  const store = useStore();
  const row = store.rows.get(id);
  const details = useAnswer(`jobs/${encodeURIComponent(id)}`, row?.finished_at_s ? 0 : REFRESH_MS);
  const explained = useAnswer(`jobs/${encodeURIComponent(id)}/explain`, row?.finished_at_s ? 0 : 2 * REFRESH_MS);
  const series = useAnswer(`jobs/${encodeURIComponent(id)}/series`, row?.finished_at_s ? 0 : REFRESH_MS);
  useEffect(() => {
    if (row?.finished_at_s) [details, explained, series].forEach((one) => one.again());
  }, [row?.finished_at_s]);
  const job = details.data;
  if (!job) return html`<div><h1>${id}</h1><${Problem} text=${details.problem} />${details.loading && html`<p class="note">Reading …</p>`}</div>`;
  const over = job.finished_at_s !== null;
  const changed = () => [details, explained].forEach((one) => one.again());
  return html`<div>
    <h1>${job.id} <span class="note">${job.name}</span></h1>
    <dl class="facts">
      <div><dt>state</dt><dd><${Phase} phase=${job.phase} /></dd></div>
      <div><dt>owner, queue</dt><dd>${job.owner}, ${job.queue}</dd></div>
      <div><dt>kind</dt><dd title=${job.kind_reason}>${job.kind}</dd></div>
      <div><dt>slots</dt><dd>${job.slots}${job.target_slots !== job.slots && !over ? ` → ${job.target_slots}` : ""} of ${slotRange(job)}</dd></div>
      <div><dt>done</dt><dd><${Meter} share=${job.done} /></dd></div>
      <div><dt>batch</dt><dd>${count(job.batch)}</dd></div>
      <div><dt>resizes, failures</dt><dd>${job.rescales}, ${job.failures}</dd></div>
      <div><dt>slot-hours</dt><dd>${number(job.gpu_s / 3600, 3)}</dd></div>
      <div><dt>submitted</dt><dd>${moment(job.submitted_at_s)}</dd></div>
      ${over
        ? html`<div><dt>ended</dt><dd>${moment(job.finished_at_s)}, after ${duration(job.jct_s)}</dd></div>`
        : html`<div><dt>finishes in</dt><dd>${job.eta ? ahead(job.eta.finish_at_s, now()) : (job.eta_missing ?? "–")}</dd></div>`}
      ${!over && !job.slots && html`<div><dt>position, starts in</dt><dd>${job.position ?? "–"}, ${job.eta ? ahead(job.eta.start_at_s, now()) : "–"}</dd></div>`}
      ${job.deadline && html`<div><dt>deadline</dt><dd>${job.deadline.verdict}</dd></div>`}
    </dl>
    ${job.reason && html`<p>${job.reason}</p>`}
    <${Problem} text=${details.problem} />
    <${Actions} job=${job} done=${changed} />
    <h2>Why this size</h2>
    <${Explained} answer=${explained.data} job=${job} />
    <h2>Over time</h2>
    <${AllCurves} series=${series.data} />
    <h2>Output</h2>
    <${Logs} job=${job} />
    <h2>History</h2>
    <ul class="lines" tabindex="0" aria-label="History">${[...job.story].reverse().map(
      (line) => html`<li><time>${moment(line.at_s)}</time>${line.text}${line.pause_s === null ? "" : html` <span class="note">(paused ${duration(line.pause_s)})</span>`}</li>`,
    )}</ul>
    <p class="cmd"><code>geminid show ${job.id}</code></p>
  </div>`;
}

function Actions({ job, done }) {
  const { session } = useStore();
  const may = session && session.role !== "viewer" && (session.role === "admin" || session.user === job.owner);
  const over = job.finished_at_s !== null;
  const [priority, setPriority] = useState(job.priority);
  const [least, setLeast] = useState(job.min_slots);
  const [most, setMost] = useState(job.max_slots ?? "");
  if (!may) return html`<p class="note">${session?.role === "viewer" ? "Viewers change nothing." : `Only ${job.owner} and admins change this job.`}</p>`;
  const path = `jobs/${job.id}`;
  const sizes = () => ({
    ...(Number(least) !== job.min_slots && { min_slots: Number(least) }),
    ...(most !== "" && Number(most) !== job.max_slots && { max_slots: Number(most) }),
  });
  return html`<div class="bar" role="group" aria-label="Actions">
    <${Action} title="Pause" disabled=${over || job.wish === "pause"} question=${`Pause ${job.id}? It saves a checkpoint, stops and waits until it is resumed.`} command=${`geminid pause ${job.id}`} path=${`${path}/pause`} done=${done} />
    <${Action} title="Resume" disabled=${over || job.wish !== "pause"} question=${`Let ${job.id} run again?`} command=${`geminid resume ${job.id}`} path=${`${path}/resume`} done=${done} />
    <${Action} title="Priority" disabled=${over} opened=${() => setPriority(job.priority)} question=${`Change the priority of ${job.id}? Higher goes first.`} command=${() => `geminid set ${job.id} --priority ${priority}`} method="PATCH" path=${path} body=${() => ({ priority: Number(priority) })} done=${done}>
      <label>priority <input type="number" min="-1000" max="1000" value=${priority} onInput=${(event) => setPriority(event.currentTarget.value)} /></label>
    <//>
    <${Action} title="Size limits" disabled=${over} opened=${() => (setLeast(job.min_slots), setMost(job.max_slots ?? ""))} question=${`Change how many slots ${job.id} may have?`} command=${() => `geminid set ${job.id} --min-slots ${least}${most === "" ? "" : ` --max-slots ${most}`}`} method="PATCH" path=${path} body=${sizes} done=${done}>
      <div class="bar">
        <label>at least <input type="number" min="1" value=${least} onInput=${(event) => setLeast(event.currentTarget.value)} /></label>
        <label>at most <input type="number" min="1" value=${most} onInput=${(event) => setMost(event.currentTarget.value)} /></label>
      </div>
    <//>
    <${Action} title="Cancel job" danger disabled=${over} question=${`Cancel ${job.id}? Its processes are stopped, and it does not run again.`} command=${`geminid cancel ${job.id}`} path=${`${path}/cancel`} done=${done} />
  </div>`;
}

function Explained({ answer, job }) {
  if (!answer) return html`<p class="note">Reading …</p>`;
  const most = Math.max(...answer.sizes.map((size) => size.goodput), 1e-12);
  const several = new Set(answer.sizes.map((size) => size.gpu_type)).size > 1;
  return html`<div>
    <p>${answer.explanation}</p>
    ${answer.numbers.length > 0 && html`<ul>${answer.numbers.map((text) => html`<li>${text}</li>`)}</ul>`}
    ${answer.sizes.length > 0 &&
    html`<div class="table" tabindex="0" role="region" aria-label="Predicted goodput of every size"><table class="sizes">
      <thead><tr><th scope="col">size</th><th scope="col"></th><th scope="col" class="num">useful samples/s</th><th scope="col" class="num">batch</th><th scope="col" class="num">efficiency</th></tr></thead>
      <tbody>${answer.sizes.map(
        (size) => html`<tr>
          <td>${several ? `${size.gpu_type} ` : ""}${plural(size.slots, "slot")}${size.nodes > 1 ? ` on ${size.nodes} nodes` : ""}${size.current ? " (now)" : ""}</td>
          <td class="bar-cell"><span class=${size.current ? "fill current" : "fill"} style=${{ width: `${(100 * size.goodput) / most}%` }}></span></td>
          <td class="num">${number(size.goodput)}</td><td class="num">${count(size.batch)}</td><td class="num">${percent(size.efficiency)}</td>
        </tr>`,
      )}</tbody>
    </table></div>`}
    ${answer.suggestions.length > 0 && html`<p>What would help:</p><ul>${answer.suggestions.map((text) => html`<li>${text}</li>`)}</ul>`}
    <p class="cmd"><code>geminid explain ${job.id}</code></p>
  </div>`;
}

function AllCurves({ series }) {
  const resized = useMemo(() => {
    if (!series) return [];
    return series.history.filter((line) => line.text.startsWith("training on") || line.text.startsWith("running on")).map((line) => line.at_s);
  }, [series]);
  if (!series) return html`<p class="note">Reading …</p>`;
  if (!series.at_s.length) return html`<p class="note">Nothing is recorded yet: curves begin when the job has slots.</p>`;
  const shared = { times: series.at_s, resized };
  const line = (label, values, step) => ({ label, values, step });
  return html`<div>
    <p class="note">Dashed lines mark starts and resizes. A point covers ${duration(series.every_s)}.</p>
    <div class="charts">
      <${Curves} title="Slots" lines=${[line("slots", series.slots, true)]} ...${shared} />
      <${Curves} title="Goodput, useful samples/s" lines=${[line("measured", series.goodput), line("predicted", series.predicted)]} ...${shared} />
      <${Curves} title="Throughput, samples/s" lines=${[line("throughput", series.throughput)]} ...${shared} />
      <${Curves} title="Batch" lines=${[line("total", series.batch, true), line("per slot", series.per_slot_batch, true), line("passes", series.passes, true)]} ...${shared} />
      <${Curves} title="Learning-rate factor" lines=${[line("factor", series.learning_rate_factor)]} ...${shared} />
      <${Curves} title="Noise scale, samples" lines=${[line("noise scale", series.noise_scale)]} ...${shared} />
      ${Object.entries(series.metrics).map(([name, values]) => html`<${Curves} key=${name} title=${name} lines=${[line(name, values)]} ...${shared} />`)}
    </div>
  </div>`;
}

function Logs({ job }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const [follow, setFollow] = useState(job.finished_at_s === null);
  const [find, setFind] = useState("");
  const box = useRef(null);
  // New output is asked for again and again: an open connection for every tab would use up the browser's six.
  useEffect(() => {
    const control = new AbortController();
    const positions = {};
    let timer = 0;
    setText("");
    const read = async () => {
      try {
        if (!document.hidden) {
          const at = Object.entries(positions).map(([log, end]) => `${log}:${end}`).join(",");
          const asked = query({ frames: true, ...(at ? { at } : { tail: 2000 }) });
          const answer = await get(`jobs/${job.id}/logs?${asked}`, { raw: true, signal: control.signal });
          const more = framed(new Uint8Array(await answer.arrayBuffer()), positions);
          if (more) setText((old) => (old + more).slice(-LOG_LIMIT));
          setProblem("");
        }
      } catch (trouble) {
        if (trouble.name === "AbortError") return;
        setProblem(trouble.message);
      }
      if (follow && !control.signal.aborted) timer = setTimeout(read, LOG_EVERY_MS);
    };
    read();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [job.id, follow, job.finished_at_s]);
  useEffect(() => {
    if (follow && !find && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, follow]);
  const wanted = find.toLowerCase();
  const lines = wanted ? text.split("\n").filter((line) => line.toLowerCase().includes(wanted)) : null;
  return html`<div>
    <div class="bar">
      <label><input type="checkbox" checked=${follow} onChange=${(event) => setFollow(event.currentTarget.checked)} /> follow</label>
      <label>search <input type="search" value=${find} onInput=${(event) => setFind(event.currentTarget.value)} /></label>
      ${lines && html`<span class="note" aria-live="polite">${plural(lines.length, "line")}</span>`}
      <span class="push cmd"><code>geminid logs ${job.id} -f</code></span>
    </div>
    <${Problem} text=${problem} />
    <pre class="log" ref=${box} tabindex="0" role="log" aria-label=${`Output of ${job.id}`}>${lines ? lines.map((line) => html`${marked(line, wanted)}${"\n"}`) : text || (problem ? "" : "Nothing was printed yet.")}</pre>
  </div>`;
}

// Pieces of logs, each after a line that says which log it is from, how long it is and where it ends there.
function framed(bytes, positions) {
  const decoder = new TextDecoder();
  let text = "";
  for (let at = 0; at < bytes.length; ) {
    const end = bytes.indexOf(10, at);
    if (end < 0) break;
    const head = JSON.parse(decoder.decode(bytes.subarray(at, end)));
    text += decoder.decode(bytes.subarray(end + 1, end + 1 + head.bytes));
    positions[head.log] = head.end;
    at = end + 1 + head.bytes;
  }
  return text;
}

function marked(line, wanted) {
  const at = line.toLowerCase().indexOf(wanted);
  return html`${line.slice(0, at)}<mark>${line.slice(at, at + wanted.length)}</mark>${line.slice(at + wanted.length)}`;
}
