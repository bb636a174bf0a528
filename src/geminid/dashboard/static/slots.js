// Slot lanes over time: which job was on which slot, by node and rack. Wheel or +/− zooms, dragging or arrows move.

import { get, query } from "./api.js";
import { html, useEffect, useRef, useState } from "./dom.js";
import { drawLanes, laneScale, lanesHeight } from "./lanes.js";
import { Table, css, jobColour, useWidth } from "./parts.js";
import { Link, go, useParameters } from "./router.js";
import { now, store, useStore } from "./store.js";
import { clock, count, duration, moment, number, plural } from "./text.js";

const AXIS_PX = 26;
const MIN_ROW_PX = 3;
const MAX_ROW_PX = 20;
const MAX_HEIGHT_PX = 620;
const SOON_MS = 1200; // after a job got or lost slots: the service records them once a second
const RARELY_MS = 20000; // goodputs change
const ADDRESS_MS = 300;
const MAX_TABLE_ROWS = 500;
const SHORTEST_S = 5;
const LONGEST_S = 60 * 86400;
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
  // The time that is shown is part of the address: how long, and up to when (nothing: up to now). Browsers refuse to
  // change it many times a second, so it follows a moment after what somebody chose.
  const [address, setAddress] = useParameters("span", "until");
  const [chosen, setChosen] = useState(address);
  const [fitted, setFitted] = useState(900); // until somebody chooses a time
  const length = Math.min(Math.max(Number(chosen.span) || fitted, SHORTEST_S), LONGEST_S);
  const end = Number(chosen.until) || null;
  const choose = (seconds, to) =>
    setChosen({ span: String(Math.round(seconds)), until: to === null || to >= now() ? "" : String(Math.round(to * 10) / 10) });
  useEffect(() => setChosen(address), [address.span, address.until]);
  useEffect(() => {
    const timer = setTimeout(() => setAddress(chosen), ADDRESS_MS);
    return () => clearTimeout(timer);
  }, [chosen.span, chosen.until]);
  const [lanes, setLanes] = useState({ stints: [], names: {}, complete: true });
  const [tip, setTip] = useState(null);
  const drag = useRef(null);
  const drawn = useRef(null);

  const t1 = end ?? now();
  const t0 = t1 - length;

  // Read again when jobs have moved, and once in a while; what is on a slot goes on by itself in between.
  const read = useRef(null);
  read.current = async (signal) => {
    const to = end ?? now();
    const found = await get(`lanes?${query({ from: to - 1.5 * length, to: to + 1, job })}`, { signal });
    setLanes(found);
    const first = Math.min(...found.stints.map(([, , , start]) => start));
    // Until somebody chooses a time, show from the first stint on, up to 15 minutes.
    if (Number.isFinite(first)) setFitted(Math.min(900, 60 * Math.ceil((1.1 * (found.now_s - first)) / 60)));
  };
  const refresh = (delay) => {
    const control = new AbortController();
    const timer = setTimeout(() => !document.hidden && read.current(control.signal).catch(() => {}), delay);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  };
  useEffect(() => refresh(60), [length, end, job]);
  const soon = useRef(0);
  useEffect(() => {
    soon.current ||= setTimeout(() => {
      soon.current = 0;
      refresh(0);
    }, SOON_MS);
  }, [store.moves]);
  useEffect(() => {
    const timer = setInterval(() => refresh(0), RARELY_MS);
    return () => {
      clearInterval(timer);
      clearTimeout(soon.current);
    };
  }, []);

  useEffect(() => {
    if (!width || !nodes) return;
    const { first, groups, rows } = layout(nodes);
    if (!rows) return;
    const row = Math.min(MAX_ROW_PX, Math.max(MIN_ROW_PX, MAX_HEIGHT_PX / rows));
    const colours = { grid: css("grid"), ink: css("ink"), halo: css("on-job") };
    const view = { left: width < 640 ? 80 : 130, right: width - 6, top: 4, t0, t1, row, gap: 5, colours };
    const stints = lanes.stints
      .filter(([, node]) => first.has(node))
      .map(([id, node, slot, start, to, slots, batch, goodput]) => ({
        row: first.get(node) + slot,
        start,
        end: to ?? t1,
        fill: jobColour(id),
        label: slots > 1 ? `${id} ×${slots}` : id,
        job: id,
        slots,
        batch,
        goodput,
        open: to === null,
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

  const zoom = (factor, at = t1) => {
    const next = Math.min(Math.max(length * factor, SHORTEST_S), LONGEST_S);
    choose(next, end === null && at === t1 ? null : at + (t1 - at) * (next / length));
  };
  const move = (share) => choose(length, t1 + share * length);
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
    const act = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.7), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: () => choose(900, null) }[event.key];
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
        const shift = ((event.clientX - drag.current.x) / (view.right - view.left)) * length;
        if (Math.abs(event.clientX - drag.current.x) > 3) {
          drag.current.moved = true;
          choose(length, drag.current.end - shift);
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
  return html`<div>
    <div class="bar">
      <span class="note">${moment(t0)} to ${end === null ? "now" : moment(t1)}</span>
      <span class="push bar">
        <button type="button" onClick=${() => move(-0.5)} aria-label="Earlier">←</button>
        <button type="button" onClick=${() => move(0.5)} aria-label="Later" disabled=${end === null}>→</button>
        <button type="button" onClick=${() => zoom(0.5)} aria-label="Zoom in">+</button>
        <button type="button" onClick=${() => zoom(2)} aria-label="Zoom out">−</button>
        ${[["15 min", 900], ["1 h", 3600], ["1 day", 86400]].map(
          ([name, seconds]) =>
            html`<button type="button" aria-pressed=${end === null && length === seconds} onClick=${() => choose(seconds, null)}>${name}</button>`,
        )}
      </span>
    </div>
    <div class="lanes-box" ref=${box}>
      <canvas class="lanes" ref=${sheet} tabindex="0" role="img" aria-label=${`Jobs on slots over time: ${plural(lanes.stints.length, "stint")}. Keys: plus and minus zoom, arrows move, 0 goes back to now. The same as a table follows.`} onKeyDown=${keys} ...${pointer}></canvas>
    </div>
    ${tip && html`<${Tip} ...${tip} />`}
    ${!lanes.complete && html`<p class="note">Too many stints to show all: the oldest are left out. Zoom in to see them.</p>`}
    <p class="note">A line marks a resize, a cross a lost worker or a failure. Drag to move; the wheel zooms with Ctrl.</p>
    <${LanesTable} lanes=${lanes} t0=${t0} t1=${t1} />
  </div>`;
}

// Where a job was resized, a line through its first lane.
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

function Tip({ x, y, stint, time }) {
  const row = store.rows.get(stint.job);
  const left = Math.max(Math.min(x + 14, innerWidth - 300), 4);
  return html`<div class="tip" role="status" style=${{ left: `${left}px`, top: `${y + 14}px` }}>
    <strong>${stint.job}</strong> ${row?.name ?? ""}<br />
    ${plural(stint.slots, "slot")} for ${duration(stint.end - stint.start)}${stint.open ? " so far" : ""}<br />
    ${stint.batch !== null && html`batch ${count(stint.batch)}, `}${stint.goodput !== null && html`${number(stint.goodput)} useful samples/s`}<br />
    <span class="note">${clock(time, now())}${stint.open && row ? `, ${row.phase}` : ""}</span>
  </div>`;
}

function LanesTable({ lanes, t0, t1 }) {
  const [open, setOpen] = useState(false);
  const inside = open ? lanes.stints.filter(([, , , start, end]) => start <= t1 && (end ?? t1) >= t0) : [];
  const faults = (lanes.faults ?? []).filter(([at]) => at >= t0 && at <= t1);
  const shown = inside.slice(-MAX_TABLE_ROWS);
  const columns = [
    { key: "job", title: "job", cell: ([id]) => `${id} ${lanes.names[id] ?? ""}` },
    { key: "slot", title: "slot", cell: ([, node, slot]) => `${node}/${slot}` },
    { key: "from", title: "from", cell: ([, , , start]) => moment(start) },
    { key: "to", title: "to", cell: ([, , , , end]) => (end === null ? "now" : moment(end)) },
    { key: "slots", title: "slots of the job", num: true, cell: (row) => row[5] },
    { key: "batch", title: "batch", num: true, cell: (row) => count(row[6]) },
    { key: "goodput", title: "useful samples/s", num: true, cell: (row) => number(row[7]) },
  ];
  return html`<details onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>The same as a table${faults.length ? `, with ${plural(faults.length, "fault")}` : ""}</summary>
    ${open &&
    html`<${Table} label="Jobs on slots" columns=${columns} rows=${shown} empty="No job was on a slot in this time." />
      ${shown.length < inside.length && html`<p class="note">The last ${count(MAX_TABLE_ROWS)} of ${count(inside.length)} stints: zoom in for the others.</p>`}
      ${faults.length > 0 && html`<ul class="lines" tabindex="0" aria-label="Faults">${faults.map(([at, id, text]) => html`<li><time>${moment(at)}</time><${Link} to=${`/jobs/${id}`}>${id}<//> ${text}</li>`)}</ul>`}`}
  </details>`;
}
