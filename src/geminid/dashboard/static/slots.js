// Slot lanes over time: which job was on which slot, by node and rack. Wheel or +/− zooms, dragging or arrows move.

import { get, query } from "./api.js";
import { html, useEffect, useRef, useState } from "./dom.js";
import { drawLanes, laneScale, lanesHeight } from "./lanes.js";
import { css, jobColour, useWidth } from "./parts.js";
import { go } from "./router.js";
import { now, store, useStore } from "./store.js";
import { clock, duration, moment, number, plural } from "./text.js";

const AXIS_PX = 26;
const MIN_ROW_PX = 3;
const MAX_ROW_PX = 20;
const MAX_HEIGHT_PX = 620;
const REFRESH_MS = 2000;
const SHORTEST_S = 5;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function layout(nodes) {
  const racks = new Set(nodes.map((node) => node.rack)).size;
  const order = [...nodes].sort((a, b) => (a.rack ?? "").localeCompare(b.rack ?? "") || a.name.localeCompare(b.name));
  const first = new Map();
  const groups = [];
  let row = 0;
  for (const node of order) {
    first.set(node.name, row);
    groups.push({ label: racks > 1 ? `${node.rack} / ${node.name}` : node.name, from: row, to: row + node.slots });
    row += node.slots;
  }
  return { first, groups, rows: row };
}

function axis(context, view, bottom) {
  const raw = (view.t1 - view.t0) / Math.max((view.right - view.left) / 110, 1);
  const step = STEPS_S.find((s) => s >= raw) ?? 86400 * Math.ceil(raw / 86400);
  const zone = new Date(view.t0 * 1000).getTimezoneOffset() * 60;
  const scale = (t) => view.left + ((t - view.t0) / (view.t1 - view.t0)) * (view.right - view.left);
  context.textAlign = "center";
  for (let t = Math.ceil((view.t0 - zone) / step) * step + zone; t <= view.t1; t += step) {
    context.fillStyle = css("line");
    context.fillRect(Math.round(scale(t)), 0, 1, bottom);
    context.fillStyle = css("muted");
    if (scale(t) > view.left + 24 && scale(t) < view.right - 24) context.fillText(clock(t, view.t1), scale(t), bottom + 16);
  }
}

export function SlotLanes({ nodes, job }) {
  useStore();
  const box = useRef(null);
  const sheet = useRef(null);
  const width = useWidth(box);
  const [span, setSpan] = useState({ length: 900, end: null, chosen: false }); // end null: up to now
  const [lanes, setLanes] = useState({ stints: [], names: {}, complete: true });
  const [tip, setTip] = useState(null);
  const drag = useRef(null);
  const drawn = useRef(null);

  const t1 = span.end ?? now();
  const t0 = t1 - span.length;

  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    const read = () => {
      const to = span.end ?? now();
      const asked = { from: to - 1.5 * span.length, to: to + 1, job };
      get(`lanes?${query(asked)}`, { signal: control.signal })
        .then((found) => {
          setLanes(found);
          const first = Math.min(...found.stints.map(([, , , start]) => start));
          if (!span.chosen && Number.isFinite(first)) fit(found.now_s - first);
        })
        .catch(() => {})
        .finally(() => {
          if (!control.signal.aborted) timer = setTimeout(() => (document.hidden ? (timer = setTimeout(read, REFRESH_MS)) : read()), REFRESH_MS);
        });
    };
    timer = setTimeout(read, 60);
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [span.length, span.end, job]);

  useEffect(() => {
    if (!width || !nodes) return;
    const { first, groups, rows } = layout(nodes);
    if (!rows) return;
    const row = Math.min(MAX_ROW_PX, Math.max(MIN_ROW_PX, MAX_HEIGHT_PX / rows));
    const colours = { grid: css("grid"), ink: css("ink"), halo: css("on-job") };
    const view = { left: width < 640 ? 80 : 130, right: width - 6, top: 4, t0, t1, row, gap: 5, colours };
    const stints = lanes.stints
      .filter(([, node]) => first.has(node))
      .map(([id, node, slot, start, end, slots]) => ({
        row: first.get(node) + slot,
        start,
        end: end ?? t1,
        fill: jobColour(id),
        label: slots > 1 ? `${id} ×${slots}` : id,
        job: id,
        slots,
        open: end === null,
      }));
    const model = { rows, groups, stints };
    const height = Math.ceil(lanesHeight(model, view) + view.top + AXIS_PX);
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const canvas = sheet.current;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11.5px system-ui, sans-serif";
    axis(context, view, height - AXIS_PX + 2);
    drawLanes(context, model, view);
    markChanges(context, model, view);
    markFaults(context, model, view, lanes.faults ?? []);
    drawn.current = { model, view };
  });

  // Until somebody chooses a time, show from the first stint on, up to 15 minutes.
  const fit = (age) => {
    const length = Math.min(900, 60 * Math.ceil((1.1 * age) / 60));
    setSpan((old) => (old.chosen || old.length === length ? old : { ...old, length }));
  };
  const zoom = (factor, at = t1) => {
    const length = Math.min(Math.max(span.length * factor, SHORTEST_S), 60 * 86400);
    const end = at + (t1 - at) * (length / span.length);
    setSpan({ length, end: span.end === null && at === t1 ? null : Math.min(end, now()), chosen: true });
  };
  const move = (share) => {
    const end = (span.end ?? now()) + share * span.length;
    setSpan({ ...span, end: end >= now() ? null : end, chosen: true });
  };
  const find = (event) => {
    if (!drawn.current) return null;
    const { model, view } = drawn.current;
    const scale = laneScale(model, view);
    const area = sheet.current.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    const row = scale.rowAt(y);
    const time = scale.time(x);
    return { time, stint: model.stints.findLast((one) => one.row === row && one.start <= time && one.end >= time) };
  };
  const keys = (event) => {
    const act = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.7), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: () => setSpan({ length: 900, end: null, chosen: true }) }[event.key];
    if (act) {
      act();
      event.preventDefault();
    }
  };
  const pointer = {
    onPointerDown: (event) => {
      drag.current = { x: event.clientX, end: t1, moved: false };
      event.currentTarget.setPointerCapture(event.pointerId);
    },
    onPointerMove: (event) => {
      if (drag.current) {
        const { view } = drawn.current;
        const shift = ((event.clientX - drag.current.x) / (view.right - view.left)) * span.length;
        if (Math.abs(event.clientX - drag.current.x) > 3) {
          drag.current.moved = true;
          const end = drag.current.end - shift;
          setSpan({ ...span, end: end >= now() ? null : end, chosen: true });
        }
        setTip(null);
        return;
      }
      const found = find(event);
      setTip(found?.stint ? { x: event.clientX, y: event.clientY, ...found } : null);
    },
    onPointerUp: (event) => {
      const found = drag.current && !drag.current.moved ? find(event) : null;
      drag.current = null;
      if (found?.stint) go(`/jobs/${found.stint.job}`);
    },
    onPointerLeave: () => setTip(null),
    onWheel: (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, find(event)?.time ?? t1);
    },
  };
  const held = lanes.stints.length;
  return html`<div>
    <div class="bar">
      <span class="note">${moment(t0)} to ${span.end === null ? "now" : moment(t1)}</span>
      <span class="push"></span>
      <button type="button" onClick=${() => move(-0.5)} aria-label="Earlier">←</button>
      <button type="button" onClick=${() => move(0.5)} aria-label="Later" disabled=${span.end === null}>→</button>
      <button type="button" onClick=${() => zoom(0.5)} aria-label="Zoom in">+</button>
      <button type="button" onClick=${() => zoom(2)} aria-label="Zoom out">−</button>
      ${[["15 min", 900], ["1 h", 3600], ["1 day", 86400]].map(
        ([name, length]) =>
          html`<button type="button" aria-pressed=${span.end === null && span.length === length} onClick=${() => setSpan({ length, end: null, chosen: true })}>${name}</button>`,
      )}
    </div>
    <div class="lanes-box" ref=${box}>
      <canvas class="lanes" ref=${sheet} tabindex="0" role="img" aria-label=${`Jobs on slots over time: ${plural(held, "stint")}. Keys: plus and minus zoom, arrows move, 0 goes back to now. The same as a table follows.`} onKeyDown=${keys} ...${pointer}></canvas>
    </div>
    ${tip && html`<${Tip} ...${tip} goodput=${lanes.goodputs?.[tip.stint.job]} />`}
    ${!lanes.complete && html`<p class="note">Too many stints to show all: the oldest are left out. Zoom in to see them.</p>`}
    <p class="note">A dark line marks a resize, a cross a lost worker or a failure.${lanes.faults?.length ? ` In this time: ${lanes.faults.map(([, job, text]) => `${job} ${text}`).slice(-3).join("; ")}.` : ""}</p>
    <${LanesTable} lanes=${lanes} t0=${t0} t1=${t1} />
  </div>`;
}

// Where a job was resized, a dark line through its first lane.
function markChanges(context, model, view) {
  const { x, y } = laneScale(model, view);
  const last = new Map();
  context.fillStyle = view.colours.ink;
  for (const stint of model.stints) {
    const before = last.get(stint.job);
    if (before && before.slots !== stint.slots && stint.start >= view.t0 && view.row >= 5)
      context.fillRect(x(stint.start) - 0.75, y(stint.row), 1.5, view.row - 1);
    last.set(stint.job, stint);
  }
}

// Where a worker was lost or a job failed, a cross on the job's lanes.
function markFaults(context, model, view, faults) {
  const { x, y } = laneScale(model, view);
  context.strokeStyle = css("bad");
  context.lineWidth = 2;
  for (const [at, job] of faults) {
    const stint = model.stints.find((one) => one.job === job && one.start <= at + 1 && one.end >= at - 1);
    if (!stint || at < view.t0 || at > view.t1) continue;
    const [cx, cy, size] = [x(at), y(stint.row) + view.row / 2, Math.min(view.row / 2, 5)];
    context.beginPath();
    context.moveTo(cx - size, cy - size);
    context.lineTo(cx + size, cy + size);
    context.moveTo(cx + size, cy - size);
    context.lineTo(cx - size, cy + size);
    context.stroke();
  }
}

function Tip({ x, y, stint, time, goodput }) {
  const row = store.rows.get(stint.job);
  const left = Math.min(x + 14, innerWidth - 300);
  return html`<div class="tip" role="status" style=${{ left: `${left}px`, top: `${y + 14}px` }}>
    <strong>${stint.job}</strong> ${row?.name ?? ""}<br />
    ${plural(stint.slots, "slot")}, ${row?.batch ? `batch ${number(row.batch)}, ` : ""}for ${duration(stint.end - stint.start)}${stint.open ? " so far" : ""}<br />
    ${stint.open && goodput ? html`${number(goodput)} useful samples/s<br />` : ""}
    <span class="note">${clock(time, now())}${row ? `, ${row.phase}` : ""}</span>
  </div>`;
}

function LanesTable({ lanes, t0, t1 }) {
  const [open, setOpen] = useState(false);
  const shown = open ? lanes.stints.filter(([, , , start, end]) => start <= t1 && (end ?? t1) >= t0).slice(-500) : [];
  return html`<details onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>The same as a table</summary>
    ${open &&
    html`<div class="table" tabindex="0" role="region" aria-label="Jobs on slots"><table>
      <thead><tr><th scope="col">job</th><th scope="col">slot</th><th scope="col">from</th><th scope="col">to</th><th scope="col" class="num">slots of the job</th></tr></thead>
      <tbody>${shown.map(
        ([id, node, slot, start, end, slots]) =>
          html`<tr><td>${id} ${lanes.names[id] ?? ""}</td><td>${node}/${slot}</td><td>${moment(start)}</td><td>${end === null ? "now" : moment(end)}</td><td class="num">${slots}</td></tr>`,
      )}</tbody>
    </table></div>`}
  </details>`;
}
