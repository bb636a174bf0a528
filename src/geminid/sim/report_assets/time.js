// Charts over time, one per policy: slots held by GPU type, and the jobs that run and wait.

const MIN_SPAN_S = 2;

const wholeTime = () => Math.max(data.horizon, 1);

// What is looked at; with everything in view, the jobs' timeline ends with its own policy.
const timeShown = () => state.time ?? [0, wholeTime()];
const jobTimeShown = () => state.time ?? [0, Math.max(data.policies[state.policy]?.horizon ?? 0, 1)];

function setTime(from, to) {
  const span = Math.min(Math.max(to - from, MIN_SPAN_S), wholeTime());
  const start = Math.min(Math.max(from, 0), wholeTime() - span);
  state.time = [start, start + span];
  soon(drawTimes);
}

function showAllTime() {
  state.time = null;
  soon(drawTimes);
}

function drawTimes() {
  drawUse();
  drawTimeline();
  drawRacks();
  for (const node of document.querySelectorAll("[data-range]"))
    node.textContent = !state.time ? "" : `${clock(state.time[0])} to ${clock(state.time[1])}`;
  for (const node of document.querySelectorAll("[data-reset-time]")) node.disabled = !state.time;
}

const usePanels = [];

function makeUsePanels() {
  data.policies.forEach((policy, i) => {
    const chart = el("div", { class: "chart" });
    const note = el("small");
    byId("use").append(el("figure", {}, el("figcaption", {}, policy.name, " ", note), chart));
    usePanels.push({ i, chart, note });
  });
  byId("type-legend").replaceChildren(
    ...data.types.map((type, i) =>
      el("span", {}, swatch(typeColour(i)), `${type.name} (${plural(type.slots, "slot")})`),
    ),
    el("span", {}, swatch("var(--queued)"), "queued jobs"),
    el(
      "span",
      {},
      el("i", { class: "swatch", style: { height: "3px", "background-color": "var(--ink)" } }),
      "running jobs",
    ),
  );
}

// --- Series: those of the whole time come with the page, closer ones are made from the timelines ---

const CLOSE_STEPS = 480;

function seriesShown(policy) {
  if (!state.time) return { start: 0, ...data.policies[policy].series };
  const { horizon } = data.policies[policy];
  const table = data.table(policy);
  const lines = data.timeline(policy);
  const [t0, t1] = state.time;
  const step = (t1 - t0) / CLOSE_STEPS;
  const levels = () => ({ level: new Float64Array(CLOSE_STEPS), change: new Float64Array(CLOSE_STEPS + 1) });
  // Add a rectangle: its part of the first and last step, and a change of level between them.
  const add = ({ level, change }, from, to, height) => {
    const a = (Math.max(from, t0) - t0) / step;
    const b = (Math.min(to, t1, horizon) - t0) / step;
    if (!(b > a)) return;
    const [first, last] = [Math.floor(a), Math.min(Math.floor(b), CLOSE_STEPS - 1)];
    if (first === last) level[first] += (b - a) * height;
    else {
      level[first] += (first + 1 - a) * height;
      level[last] += (b - last) * height;
      change[first + 1] += height;
      change[last] -= height;
    }
  };
  const sum = ({ level, change }) => {
    let height = 0;
    return level.map((v, k) => v + (height += change[k]));
  };
  const held = data.types.map(levels);
  const [running, present] = [levels(), levels()];
  for (let i = 0; i < lines.start.length; i++) {
    const { type, slots } = lines.allocations[lines.at[i]];
    add(held[type], lines.start[i], lines.end[i], slots);
    add(running, lines.start[i], lines.end[i], 1);
  }
  for (let j = 0; j < nJobs; j++) add(present, data.jobs.submitted[j], table.completed[j] ?? horizon, 1);
  const busy = sum(running);
  const steps = Math.min(Math.max(Math.ceil((horizon - t0) / step), 0), CLOSE_STEPS);
  return {
    start: t0,
    step_s: step,
    held: held.map(sum),
    running: busy.subarray(0, steps),
    queued: sum(present).map((v, k) => Math.max(v - busy[k], 0)),
  };
}

const drawUse = draws("use", () => {
  const most = Math.max(1, ...data.policies.flatMap((p) => [maximum(p.series.running), maximum(p.series.queued)]));
  const step = Math.max(niceStep(most, 2), 1);
  for (const panel of usePanels) drawUsePanel(panel, Math.ceil(most / step) * step);
});

const maximum = (values) => values.reduce((a, b) => Math.max(a, b), 0);

function drawUsePanel(panel, mostJobs) {
  const { chart, i } = panel;
  const width = Math.floor(chart.clientWidth);
  const { horizon, name } = data.policies[i];
  const series = (panel.series = seriesShown(i));
  const shown = timeShown();
  const [left, right] = [42, width - 8];
  const upper = [20, 118];
  const lower = [144, 206];
  const height = lower[1] + 36;
  const x = linear(shown[0], shown[1], left, right);
  const root = frame(width, height, `Slots held and jobs over time under ${name}`);
  const share = linear(0, 1, upper[1], upper[0]);
  const jobs = linear(0, mostJobs, lower[1], lower[0]);
  for (const v of [0, 0.5, 1])
    root.append(
      svg("line", { class: v ? "grid" : "axis", x1: left, x2: right, y1: share(v), y2: share(v) }),
      svg("text", { x: left - 6, y: share(v) + 4, "text-anchor": "end" }, v === 1 ? "100 %" : String(100 * v)),
    );
  for (const v of ticks(0, mostJobs, 2))
    root.append(
      svg("line", { class: v ? "grid" : "axis", x1: left, x2: right, y1: jobs(v), y2: jobs(v) }),
      svg("text", { x: left - 6, y: jobs(v) + 4, "text-anchor": "end" }, compact(v)),
    );
  root.append(
    svg("text", { x: left, y: upper[0] - 8 }, "Slots held"),
    svg("text", { x: left, y: lower[0] - 8 }, "Jobs running and queued"),
  );
  timeAxis(root, x, left, right, lower[1]);

  const step = series.step_s || 1;
  const [from, to] = [0, series.running.length];
  const group = Math.max(1, Math.floor((to - from) / Math.max(right - left, 1)));
  const steps = [];
  for (let k = from; k < to; k += group)
    steps.push([series.start + k * step, series.start + Math.min(k + group, to) * step, k, Math.min(k + group, to)]);
  const mean = (values, a, b) => {
    let sum = 0;
    for (let k = a; k < b; k++) sum += values[k];
    return sum / (b - a);
  };
  const lines = (values, y) =>
    steps.map(([t0, t1, a, b]) => [x(t0).toFixed(1), x(t1).toFixed(1), y(values(a, b)).toFixed(1)]);
  const outline = (points) => points.map(([x0, x1, y]) => `L${x0},${y}H${x1}`).join("");
  if (steps.length) {
    let below = () => 0;
    series.held.forEach((held, type) => {
      const base = below;
      const top = (a, b) => base(a, b) + mean(held, a, b) / data.slots;
      const upperEdge = outline(lines(top, share)).slice(1);
      const lowerEdge = lines(base, share)
        .reverse()
        .map(([x0, x1, y]) => `L${x1},${y}H${x0}`)
        .join("");
      root.append(svg("path", { d: `M${upperEdge}${lowerEdge}Z`, style: { fill: typeColour(type) } }));
      below = top;
    });
    const queued = lines((a, b) => mean(series.queued, a, b), jobs);
    root.append(
      svg("path", {
        d: `M${queued[0][0]},${lower[1]}${outline(queued)}V${lower[1]}Z`,
        style: { fill: "var(--queued)" },
      }),
    );
    const running = lines((a, b) => mean(series.running, a, b), jobs);
    root.append(
      svg("path", {
        d: `M${outline(running).slice(1)}`,
        fill: "none",
        "stroke-width": 1.4,
        style: { stroke: "var(--ink)" },
      }),
    );
  }
  if (horizon < data.horizon && horizon > shown[0] && horizon < shown[1]) {
    const late = x(horizon) > (left + right) / 2 + 60;
    root.append(
      svg("line", {
        class: "cross",
        x1: x(horizon),
        x2: x(horizon),
        y1: upper[0],
        y2: lower[1],
        "stroke-dasharray": "2 3",
      }),
      svg(
        "text",
        { x: x(horizon) + (late ? -5 : 5), y: upper[0] + 14, "text-anchor": late ? "end" : "start", class: "strong" },
        `${data.policies[i].unfinished ? "ends" : "done"} after ${duration(horizon)}`,
      ),
    );
  }
  const cross = svg("line", { class: "cross", y1: upper[0], y2: lower[1], visibility: "hidden" });
  const band = svg("rect", { class: "band", y: upper[0], height: lower[1] - upper[0], visibility: "hidden" });
  root.append(cross, band);
  place(chart, root);
  panel.cross = (t) => {
    const visible = t !== null && t >= shown[0] && t <= shown[1];
    cross.setAttribute("visibility", visible ? "visible" : "hidden");
    if (!visible) return;
    cross.setAttribute("x1", x(t));
    cross.setAttribute("x2", x(t));
  };
  panel.note.textContent = "";
  pointUse(root, band, left, right);
}

function timeAxis(root, x, left, right, bottom) {
  const axis = timeTicks(...timeShown(), Math.max(Math.floor((right - left) / 70), 2));
  for (const [t, label] of axis.ticks)
    root.append(
      svg("line", { class: "axis", x1: x(t), x2: x(t), y1: bottom, y2: bottom + 4 }),
      svg("text", { x: x(t), y: bottom + 17, "text-anchor": "middle" }, label),
    );
  root.append(
    svg(
      "text",
      { x: (left + right) / 2, y: bottom + 33, "text-anchor": "middle" },
      `Time since the start (${axis.unit})`,
    ),
  );
}

function pointUse(root, band, left, right) {
  const [t0, t1] = timeShown();
  const at = (px) => t0 + ((Math.min(Math.max(px, left), right) - left) / (right - left)) * (t1 - t0);
  let pressed = null;
  root.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pressed = pointerX(event, root);
    root.setPointerCapture(event.pointerId);
  });
  root.addEventListener("pointermove", (event) => {
    const t = at(pointerX(event, root));
    for (const panel of usePanels) {
      panel.cross(t);
      panel.note.textContent = sayUse(panel.series, t);
    }
    if (pressed === null) return;
    const [a, b] = [pressed, pointerX(event, root)]
      .map((px) => Math.min(Math.max(px, left), right))
      .sort((p, q) => p - q);
    band.setAttribute("x", a);
    band.setAttribute("width", b - a);
    band.setAttribute("visibility", b - a > 3 ? "visible" : "hidden");
  });
  root.addEventListener("pointerup", (event) => {
    if (pressed === null) return;
    const [a, b] = [pressed, pointerX(event, root)].sort((p, q) => p - q);
    pressed = null;
    band.setAttribute("visibility", "hidden");
    if (b - a > 4) setTime(at(a), at(b));
  });
  root.addEventListener("pointercancel", () => {
    pressed = null;
    band.setAttribute("visibility", "hidden");
  });
  root.addEventListener("pointerleave", () => {
    for (const panel of usePanels) {
      panel.cross(null);
      panel.note.textContent = "";
    }
  });
  root.addEventListener("dblclick", () => showAllTime());
  keys(root, (key) => timeKeys(key, timeShown()));
}

function timeKeys(key, [from, to]) {
  const span = to - from;
  if (key === "ArrowLeft") setTime(from - span / 10, to - span / 10);
  else if (key === "ArrowRight") setTime(from + span / 10, to + span / 10);
  else if (key === "+" || key === "=") setTime(from + span / 6, to - span / 6);
  else if (key === "-") setTime(from - span / 4, to + span / 4);
  else if (key === "0") showAllTime();
  else return false;
  return true;
}

function sayUse(series, t) {
  const k = Math.floor((t - series.start) / (series.step_s || 1));
  if (!(k < series.running.length)) return `· ${clock(t)} · all done`;
  const held = series.held.reduce((sum, values) => sum + values[k], 0);
  return `· ${clock(t)} · ${percent(held / data.slots)} held · ${compact(series.running[k])} running · ${compact(series.queued[k])} queued`;
}
