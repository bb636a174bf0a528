// Pointing at the timeline: what is where, what is said about it, choosing, zooming and moving.

// --- What is where ---

function stintAt(lines, job, t) {
  let [low, high] = [lines.first[job], lines.first[job + 1]];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lines.end[middle] <= t) low = middle + 1;
    else high = middle;
  }
  return low < lines.first[job + 1] && lines.start[low] <= t ? low : -1;
}

// The job at a point: its row, or where rows are thin, the nearest row within reach that is alive at that time.
function jobAt(px, py) {
  const box = view.box;
  if (!box || px < 0 || py < box.top || !view.order.length) return null;
  const exact = view.rows[0] + Math.floor((py - box.top) / box.row);
  if (exact >= view.rows[1]) return null;
  const t = timeAt(px);
  const reach = box.row >= 5 ? 0 : Math.ceil(4 / box.row);
  const table = data.table(state.policy);
  for (let away = 0; away <= reach; away++)
    for (const row of away ? [exact - away, exact + away] : [exact]) {
      if (row < view.rows[0] || row >= view.rows[1]) continue;
      const job = view.order[row];
      const end = table.completed[job] ?? data.policies[state.policy].horizon;
      if (t >= data.jobs.submitted[job] && t <= end) return { job, row, t };
    }
  return { job: view.order[exact], row: exact, t };
}

const timeAt = (px) => {
  const { left, right } = view.box;
  const [t0, t1] = jobTimeShown();
  return t0 + ((Math.min(Math.max(px, left), right) - left) / (right - left)) * (t1 - t0);
};

const slotsOn = (allocation) => `${plural(allocation.slots, "slot")} of ${data.types[allocation.type].name}`;
const nodesOf = (allocation) => allocation.nodes.map(([name, slots]) => `${name} ×${slots}`).join(", ");

function batchOf(lines, i) {
  if (!lines.total[i]) return "not modelled";
  const parts = `${count(lines.allocations[lines.at[i]].slots)} × ${count(lines.per_slot[i])}`;
  return `${count(lines.total[i])} (${parts}${lines.accumulation[i] ? ` × ${lines.accumulation[i] + 1} passes` : ""})`;
}

function tipOfJob({ job, t }) {
  const lines = data.timeline(state.policy);
  const table = data.table(state.policy);
  const i = stintAt(lines, job, t);
  const end = table.completed[job];
  const pairs = [];
  if (i >= 0) {
    const allocation = lines.allocations[lines.at[i]];
    pairs.push(["Has", slotsOn(allocation)], ["On", nodesOf(allocation)], ["Batch", batchOf(lines, i)]);
    pairs.push(["From, to", `${clock(lines.start[i])} – ${clock(lines.end[i])}`]);
    pairs.push([
      "Doing",
      t < lines.works[i]
        ? "paused for a rescale"
        : `working, ${percent(1 - (lines.scaling[i] + lines.statistics[i]) / 1000)} usefully`,
    ]);
  } else {
    const phase =
      t < data.jobs.submitted[job] ? "not yet submitted" : end !== null && t >= end ? "done" : "waiting for slots";
    pairs.push(["Doing", phase]);
  }
  const { values, total } = partsOfJob(table, job);
  return [
    el("p", { class: "title" }, data.jobs.name[job]),
    el("p", { class: "dim" }, `${data.applications[data.jobs.application[job]]} · at ${clock(t)}`),
    el("div", { class: "pairs" }, ...pairs.flat().map((text) => el("span", {}, text))),
    stack(values, total),
    el(
      "p",
      { class: "dim" },
      `${end === null ? "Unfinished after" : "Completion time"} ${duration(total)}: ${PARTS.map(([key], k) =>
        values[k] > 0
          ? `${percent(values[k] / (total || 1))} ${key === "scaling" || key === "statistics" ? `lost to ${key}` : key}`
          : null,
      )
        .filter(Boolean)
        .join(", ")}`,
    ),
  ];
}

// --- Pointing, choosing, zooming ---

function setRows(from, to) {
  const all = view.order.length;
  const span = Math.min(Math.max(Math.round(to - from), Math.min(3, all)), all);
  const start = Math.min(Math.max(Math.round(from), 0), all - span);
  view.rows = [start, start + span];
}

function zoomTimeline(factor, px, py) {
  const { left, right, top, row } = view.box;
  const [t0, t1] = jobTimeShown();
  const [r0, r1] = view.rows;
  const t = px === undefined ? (t0 + t1) / 2 : timeAt(Math.min(Math.max(px, left), right));
  const r = py === undefined ? (r0 + r1) / 2 : Math.min(r0 + (py - top) / row, r1);
  setRows(r - (r - r0) * factor, r + (r1 - r) * factor);
  setTime(t - (t - t0) * factor, t + (t1 - t) * factor);
}

function showAll() {
  setRows(0, view.order.length);
  showAllTime();
}

function choose(job, { scroll = true } = {}) {
  state.job = job;
  showDetail(scroll);
  soon(drawTimeline);
}

function moveChoice(step) {
  if (!view.order.length) return;
  const at = state.job === null ? -1 : view.order.indexOf(state.job);
  const row = at < 0 ? view.rows[0] : Math.min(Math.max(at + step, 0), view.order.length - 1);
  const span = view.rows[1] - view.rows[0];
  if (row < view.rows[0]) setRows(row, row + span);
  if (row >= view.rows[1]) setRows(row + 1 - span, row + 1);
  choose(view.order[row], { scroll: false });
}

function listenToTimeline() {
  const [brush, cursor, rowmark] = ["brush", "cursor", "rowmark"].map((name) =>
    document.querySelector(`#timeline .${name}`),
  );
  let pressed = null;
  const position = (event) => {
    const edge = canvas.getBoundingClientRect();
    return [event.clientX - edge.left, event.clientY - edge.top];
  };
  const within = (px, py) => [
    Math.min(Math.max(px, view.box.left), view.box.right),
    Math.min(Math.max(py, view.box.top), view.box.bottom),
  ];
  const put = (node, left, top, width, height) => {
    node.hidden = false;
    Object.assign(node.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  };
  // A flat drag zooms in time only.
  const area = (px, py) => {
    const [[ax, ay], [bx, by]] = [within(...pressed.at), within(px, py)];
    const flat = Math.abs(by - ay) < 14;
    return {
      x0: Math.min(ax, bx),
      x1: Math.max(ax, bx),
      y0: flat ? view.box.top : Math.min(ay, by),
      y1: flat ? view.box.bottom : Math.max(ay, by),
      flat,
    };
  };
  const leave = () => {
    tip.hide();
    cursor.hidden = rowmark.hidden = true;
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !view.box) return;
    pressed = { at: position(event), time: jobTimeShown(), rows: [...view.rows], shift: event.shiftKey, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [px, py] = position(event);
    if (pressed) {
      const [dx, dy] = [px - pressed.at[0], py - pressed.at[1]];
      pressed.moved ||= Math.hypot(dx, dy) > 4;
      if (!pressed.moved) return;
      leave();
      if (pressed.shift) {
        const { left, right, row } = view.box;
        const seconds = (-dx * (pressed.time[1] - pressed.time[0])) / (right - left);
        setRows(pressed.rows[0] - dy / row, pressed.rows[1] - dy / row);
        setTime(pressed.time[0] + seconds, pressed.time[1] + seconds);
      } else {
        const { x0, x1, y0, y1 } = area(px, py);
        put(brush, x0, y0, x1 - x0, y1 - y0);
      }
      return;
    }
    const found = jobAt(px, py);
    if (!found) return leave();
    const { left, right, top, bottom, row } = view.box;
    tip.show(event.clientX, event.clientY, ...tipOfJob(found));
    if (px >= left && px <= right) put(cursor, px, top, 1, bottom - top);
    put(rowmark, left, top + (found.row - view.rows[0]) * row - 1, right - left, Math.max(row, 2) + 2);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!pressed) return;
    const [px, py] = position(event);
    const { moved, shift } = pressed;
    brush.hidden = true;
    if (!moved) {
      const found = jobAt(px, py);
      if (found) choose(found.job);
    } else if (!shift) {
      const { x0, x1, y0, y1, flat } = area(px, py);
      const { top, row } = view.box;
      const first = view.rows[0];
      const times = [timeAt(x0), timeAt(x1)];
      if (!flat)
        setRows(Math.floor(first + (y0 - top) / row), Math.min(Math.ceil(first + (y1 - top) / row), view.rows[1]));
      if (x1 - x0 > 4) setTime(...times);
      else soon(drawTimes);
    }
    pressed = null;
  });
  canvas.addEventListener("pointercancel", () => {
    pressed = null;
    brush.hidden = true;
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("dblclick", showAll);
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoomTimeline(event.deltaY > 0 ? 1.25 : 0.8, ...position(event));
    },
    { passive: false },
  );
  keys(canvas, (key) => {
    if (key === "ArrowUp") moveChoice(-1);
    else if (key === "ArrowDown") moveChoice(1);
    else if (key === "+" || key === "=") zoomTimeline(0.67);
    else if (key === "-") zoomTimeline(1.5);
    else if (key === "0") showAll();
    else if (key === "Enter" && state.job !== null) byId("detail").focus();
    else if (key === "Escape") closeDetail();
    else return timeKeys(key, jobTimeShown());
    return true;
  });
  byId("zoom-in").addEventListener("click", () => zoomTimeline(0.67));
  byId("zoom-out").addEventListener("click", () => zoomTimeline(1.5));
  byId("zoom-reset").addEventListener("click", showAll);
}
