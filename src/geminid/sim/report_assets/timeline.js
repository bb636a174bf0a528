// The timeline of all jobs under one policy, a row each, on a canvas: 10,000 rows are drawn like ten.

const LABEL_ROW_PX = 11;
const MAX_ROW_PX = 22;
const SORTS = [
  ["submission", "Submission"],
  ["jct", "Completion time, longest first"],
  ["queued", "Time queued, longest first"],
  ["application", "Application"],
];
const COLOURS = [
  ["slots", "Number of slots"],
  ["type", "GPU type"],
  ["useful", "Useful share of time"],
  ["communication", "Share of work in communication"],
];

const view = { sort: "submission", colour: "slots", application: -1, filter: "", order: [], rows: [0, 0], box: null };

const canvas = byId("gantt");

// --- Which jobs, in which order ---

function arrange({ keepRows = false } = {}) {
  const table = data.table(state.policy);
  const { name, application, submitted } = data.jobs;
  const wanted = view.filter.trim().toLowerCase();
  const order = [];
  for (let j = 0; j < nJobs; j++) {
    if (view.application >= 0 && application[j] !== view.application) continue;
    if (
      wanted &&
      !name[j].toLowerCase().includes(wanted) &&
      !data.applications[application[j]].toLowerCase().includes(wanted)
    )
      continue;
    order.push(j);
  }
  const jct = (j) => (table.completed[j] === null ? Infinity : table.completed[j] - submitted[j]);
  const by = {
    submission: (a, b) => submitted[a] - submitted[b],
    jct: (a, b) => (jct(a) === jct(b) ? 0 : jct(b) - jct(a)),
    queued: (a, b) => table.queued[b] - table.queued[a],
    application: (a, b) => application[a] - application[b] || submitted[a] - submitted[b],
  }[view.sort];
  view.order = order.sort((a, b) => by(a, b) || a - b);
  if (!keepRows || !view.rows[1] || view.rows[1] > order.length) view.rows = [0, order.length];
  sayJobsShown();
}

function sayJobsShown() {
  const [from, to] = view.rows;
  const all = view.order.length;
  const rows =
    to - from < all
      ? `jobs ${count(from + 1)} to ${count(to)} of ${count(all)}`
      : all < nJobs
        ? `${count(all)} of ${plural(nJobs, "job")}`
        : plural(all, "job");
  byId("jobs-shown").textContent = state.time ? `${rows}, ${clock(state.time[0])} to ${clock(state.time[1])}` : rows;
}

// --- Colours ---

// Slots in powers of two: up to 1, 2, 4, 8, … slots share a colour.
const slotLevel = (slots) => Math.ceil(Math.log2(Math.max(slots, 1)) - 1e-9);

function palette(lines) {
  const most = lines.allocations.reduce((m, a) => Math.max(m, slotLevel(a.slots)), 0);
  if (view.colour === "type") {
    const colours = data.types.map((_, i) => cssColour(`type-${i % 8}`));
    return { colours, names: data.types.map((t) => t.name), level: (i) => lines.allocations[lines.at[i]].type };
  }
  if (view.colour === "tier") {
    return { colours: tierColours(), names: tiersShown(), level: (i) => tierOf(lines.allocations[lines.at[i]]) };
  }
  if (view.colour === "communication") {
    const names = ["under 10 %", "10 to 25 %", "25 to 50 %", "50 to 75 %", "over 75 %"];
    const shares = data.table(state.policy).communication;
    const limits = [100, 250, 500, 750];
    const jobOf = new Int32Array(lines.start.length);
    for (let job = 0; job + 1 < lines.first.length; job++) jobOf.fill(job, lines.first[job], lines.first[job + 1]);
    return {
      colours: names.map((_, k) => rampColour(k / 4)),
      names,
      level: (i) => limits.filter((limit) => (shares[jobOf[i]] ?? 0) >= limit).length,
    };
  }
  if (view.colour === "useful") {
    const names = ["under 20 %", "20 to 40 %", "40 to 60 %", "60 to 80 %", "over 80 %"];
    return {
      colours: names.map((_, k) => rampColour(k / 4)),
      names,
      level: (i) => Math.min(Math.floor((1000 - lines.scaling[i] - lines.statistics[i]) / 200), 4),
    };
  }
  const levels = lines.allocations.map((a) => slotLevel(a.slots));
  const names = Array.from({ length: most + 1 }, (_, k) =>
    k === 0 ? "1 slot" : k === 1 ? "2" : `${count(2 ** (k - 1) + 1)}–${count(2 ** k)}`,
  );
  return { colours: names.map((_, k) => rampColour(most ? k / most : 0.5)), names, level: (i) => levels[lines.at[i]] };
}

function stripes(context, ink, ground) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const t = tile.getContext("2d");
  t.fillStyle = ground;
  t.fillRect(0, 0, 6, 6);
  t.strokeStyle = ink;
  t.lineWidth = 1.6;
  t.beginPath();
  for (const k of [-6, 0, 6]) {
    t.moveTo(k - 1, 7);
    t.lineTo(k + 7, -1);
  }
  t.stroke();
  return context.createPattern(tile, "repeat");
}

// --- Drawing ---

const drawTimeline = draws("timeline", (node, width) => {
  const lines = data.policies.length ? data.timeline(state.policy) : null;
  const rows = view.rows[1] - view.rows[0];
  for (const mark of node.querySelectorAll("div")) mark.hidden = true;
  const height = Math.max(90, Math.min(560, Math.max(view.order.length, 1) * MAX_ROW_PX + 34));
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const box = { left: width < 640 ? 76 : 168, right: width - 8, top: 2, bottom: height - 34, row: 0 };
  box.row = Math.min(MAX_ROW_PX, (box.bottom - box.top) / Math.max(rows, 1));
  box.x = linear(...jobTimeShown(), box.left, box.right);
  view.box = box;
  sayJobsShown();
  drawAxes(context, box, width, height);
  const name = data.policies[state.policy]?.name ?? "";
  canvas.setAttribute("aria-label", `Timeline of ${plural(rows, "job")} under ${name}`);
  if (!lines || !rows) {
    context.fillStyle = cssColour("muted");
    context.fillText(nJobs ? "No job matches the filter." : "There are no jobs.", box.left + 10, box.top + 24);
    return;
  }
  const colours = palette(lines);
  drawLabels(context, box, lines);
  context.save();
  context.beginPath();
  context.rect(box.left, 0, box.right - box.left, box.bottom + 1);
  context.clip();
  drawWaits(context, box, lines);
  drawStints(context, box, lines, colours);
  if (state.job !== null) markJob(context, box);
  context.restore();
  fillTimelineLegend(colours);
});

function drawAxes(context, box, width, height) {
  context.font = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
  context.textBaseline = "alphabetic";
  const axis = timeTicks(...jobTimeShown(), Math.max(Math.floor((box.right - box.left) / 80), 2));
  context.textAlign = "center";
  for (const [t, label] of axis.ticks) {
    context.fillStyle = cssColour("grid");
    context.fillRect(Math.round(box.x(t)), box.top, 1, box.bottom - box.top);
    context.fillStyle = cssColour("muted");
    context.fillText(label, box.x(t), box.bottom + 15);
  }
  context.fillStyle = cssColour("line");
  context.fillRect(box.left, box.bottom, box.right - box.left, 1);
  context.fillStyle = cssColour("muted");
  context.fillText(`Time since the start (${axis.unit})`, (box.left + box.right) / 2, height - 4);
  context.textAlign = "left";
}

function drawLabels(context, box) {
  const [from, to] = view.rows;
  const room = box.left - 10;
  const y = (row) => box.top + (row - from) * box.row;
  context.textAlign = "right";
  context.fillStyle = cssColour("ink");
  if (box.row >= LABEL_ROW_PX) {
    context.font = `${Math.min(12, box.row - 1)}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;
    for (let row = from; row < to; row++)
      context.fillText(shortened(context, data.jobs.name[view.order[row]], room), box.left - 8, y(row) + box.row / 2 + 4);
  } else if (view.sort === "application") {
    let start = from;
    for (let row = from + 1; row <= to; row++) {
      const app = data.jobs.application[view.order[start]];
      if (row < to && data.jobs.application[view.order[row]] === app) continue;
      context.fillStyle = cssColour("line");
      context.fillRect(8, y(row), box.right - 8, 1);
      context.fillStyle = cssColour("ink");
      if (y(row) - y(start) >= 12)
        context.fillText(shortened(context, data.applications[app], room), box.left - 8, (y(start) + y(row)) / 2 + 4);
      start = row;
    }
  } else {
    context.fillStyle = cssColour("muted");
    for (const n of ticks(from + 1, to, 8).filter(Number.isInteger))
      context.fillText(`job ${count(n)}`, box.left - 8, y(n - 1) + box.row / 2 + 4);
  }
  context.textAlign = "left";
}

function eachRow(box, act) {
  const [from, to] = view.rows;
  for (let row = from; row < to; row++) act(view.order[row], box.top + (row - from) * box.row);
}

const barHeight = (row) => (row >= 6 ? row - 2 : Math.max(row, 1));

// Thin lines where a job has no slots.
function drawWaits(context, box, lines) {
  const table = data.table(state.policy);
  const thin = box.row >= 6 ? 3 : Math.max(box.row * 0.6, 0.5);
  const until = data.policies[state.policy].horizon;
  const [t0, t1] = jobTimeShown();
  context.fillStyle = cssColour("queued");
  eachRow(box, (job, y) => {
    const top = y + (box.row - thin) / 2;
    let from = data.jobs.submitted[job];
    const wait = (to) => {
      if (to > from && to > t0 && from < t1) context.fillRect(box.x(from), top, box.x(to) - box.x(from), thin);
    };
    for (let i = lines.first[job]; i < lines.first[job + 1]; i++) {
      wait(lines.start[i]);
      from = lines.end[i];
    }
    wait(table.completed[job] ?? until);
  });
}

function drawStints(context, box, lines, { colours, level }) {
  const tall = barHeight(box.row);
  const inset = box.row >= 6 ? 1 : 0;
  const paused = cssColour("paused");
  const hatch = stripes(context, paused, cssColour("bg"));
  const ink = cssColour("ink");
  const marks = [];
  const [t0, t1] = jobTimeShown();
  eachRow(box, (job, y) => {
    const top = y + inset;
    const last = lines.first[job + 1];
    let i = lines.first[job];
    while (i < last) {
      const shade = level(i);
      const start = lines.start[i];
      const works = lines.works[i];
      const rescaled = lines.rescaled[i];
      let end = lines.end[i];
      i++;
      // Neighbours that look the same are one bar.
      while (i < last && !lines.rescaled[i] && lines.works[i] === lines.start[i] && level(i) === shade)
        end = lines.end[i++];
      if (end < t0 || start > t1) continue;
      const [a, b, c] = [box.x(Math.max(start, t0)), box.x(Math.max(works, t0)), box.x(Math.min(end, t1))];
      if (c > b) {
        context.fillStyle = colours[shade];
        context.fillRect(b, top, Math.max(c - b, 0.7), tall);
      }
      if (b - a > 0.2) {
        context.fillStyle = b - a > 2.5 && tall > 4 ? hatch : paused;
        context.fillRect(a, top, Math.min(b, c) - a, tall);
      }
      if (rescaled && box.row >= 7 && start >= t0) marks.push(a, top);
    }
  });
  context.fillStyle = ink;
  for (let k = 0; k < marks.length; k += 2) context.fillRect(marks[k] - 0.6, marks[k + 1] - 1, 1.4, tall + 2);
}

function markJob(context, box) {
  const row = view.order.indexOf(state.job);
  if (row < view.rows[0] || row >= view.rows[1]) return;
  const y = box.top + (row - view.rows[0]) * box.row;
  context.strokeStyle = cssColour("accent");
  context.lineWidth = 1.5;
  context.strokeRect(box.left + 1, y - 1.5, box.right - box.left - 2, Math.max(box.row, 1) + 3);
}

function fillTimelineLegend({ colours, names }) {
  byId("timeline-legend").replaceChildren(
    ...names.map((name, k) => el("span", {}, swatch(colours[k]), name)),
    el("span", {}, swatch("var(--paused)", true), "paused"),
    el(
      "span",
      {},
      el("i", { class: "swatch", style: { height: "3px", "background-color": "var(--queued)" } }),
      "waiting",
    ),
    el("span", {}, el("i", { class: "swatch", style: { width: "2px", "background-color": "var(--ink)" } }), "rescale"),
  );
}
