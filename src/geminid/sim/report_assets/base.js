// Data, state, text, elements and scales that everything else uses. Times are seconds from here on.

const data = (() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const overview = read("overview");
  const tables = new Map();
  const timelines = new Map();
  overview.horizon /= 10;
  overview.jobs.submitted = overview.jobs.submitted.map((t) => t / 10);
  for (const policy of overview.policies) policy.horizon /= 10;

  // One policy's jobs; a time that never came is null.
  function table(policy) {
    if (!tables.has(policy)) {
      const raw = read(`jobs-${policy}`);
      for (const key of ["started", "completed"]) raw[key] = raw[key].map((t) => (t < 0 ? null : t / 10));
      for (const key of ["queued", "paused", "useful", "scaling", "statistics"]) raw[key] = raw[key].map((t) => t / 10);
      tables.set(policy, raw);
    }
    return tables.get(policy);
  }

  // One policy's stints in flat arrays; those of job j are first[j] … first[j + 1] - 1.
  function timeline(policy) {
    if (!timelines.has(policy)) timelines.set(policy, unpack(read(`timelines-${policy}`)));
    return timelines.get(policy);
  }

  function unpack(raw) {
    const n = raw.gap.length;
    const first = new Int32Array(raw.stints.length + 1);
    const start = new Float64Array(n);
    const works = new Float64Array(n);
    const end = new Float64Array(n);
    const rescaled = new Uint8Array(n);
    let i = 0;
    raw.stints.forEach((count, job) => {
      let at = Math.round(overview.jobs.submitted[job] * 10);
      first[job] = i;
      for (const stop = i + count; i < stop; i++) {
        at += raw.gap[i];
        start[i] = at / 10;
        works[i] = (at + raw.pause[i]) / 10;
        at += raw.for[i];
        end[i] = at / 10;
        rescaled[i] = i > first[job] && (raw.gap[i] > 0 || raw.at[i] !== raw.at[i - 1]) ? 1 : 0;
      }
    });
    first[raw.stints.length] = i;
    const allocations = raw.allocations.map(([type, ...pairs]) => {
      let slots = 0;
      const nodes = [];
      const indices = [];
      for (let k = 0; k < pairs.length; k += 2) {
        slots += pairs[k + 1];
        indices.push(pairs[k]);
        nodes.push([overview.nodes[pairs[k]] ?? `node ${pairs[k]}`, pairs[k + 1]]);
      }
      return { type, slots, nodes, indices };
    });
    return { ...raw, first, start, works, end, rescaled, allocations, mergedBelow: raw.merged_below };
  }

  return { ...overview, table, timeline };
})();

const PARTS = [
  ["queued", "Queued"],
  ["paused", "Paused for rescales"],
  ["useful", "Computing usefully"],
  ["scaling", "Lost to scaling"],
  ["statistics", "Lost to statistics"],
];

const nJobs = data.jobs.name.length;

const state = {
  policy: bestPolicy(),
  hidden: new Set(),
  time: null, // what the time axes show; null is everything
  job: null,
};

function bestPolicy() {
  let best = 0;
  const mean = (p) => (p.cdf[0].length ? p.spent.reduce((a, b) => a + b, 0) : Infinity);
  data.policies.forEach((p, i) => {
    if (mean(p) < mean(data.policies[best])) best = i;
  });
  return best;
}

// --- Elements: text is always set as text ---

const byId = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const swatch = (colour, hatched = false) =>
  el("i", { class: hatched ? "swatch hatched" : "swatch", style: { "background-color": colour } });

// --- Colours ---

const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const policyColour = (i) => `var(--policy-${i % 8})`;
const policyDash = (i) => ["none", "7 3", "2 3", "9 3 2 3"][(i + Math.floor(i / 8)) % 4];
const typeColour = (i) => `var(--type-${i % 8})`;

function rgb(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

// A colour along the ramp, for a share between 0 and 1.
function rampColour(share) {
  const at = Math.min(Math.max(share, 0), 1) * 4;
  const low = Math.min(Math.floor(at), 3);
  const [a, b] = [rgb(cssColour(`ramp-${low}`)), rgb(cssColour(`ramp-${low + 1}`))];
  const mixed = a.map((v, k) => Math.round(v + (b[k] - v) * (at - low)));
  return `#${mixed.map((v) => v.toString(16).padStart(2, "0")).join("")}`;
}

// --- Numbers as people write them ---

const count = (n) => n.toLocaleString("en-US");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}\u00a0%`;

function duration(s) {
  if (s === null || s === undefined) return "–";
  if (s < 600) return s >= 10 || s === 0 ? `${s.toFixed(0)}\u00a0s` : `${s.toFixed(1)}\u00a0s`;
  return s < 7200
    ? `${(s / 60).toFixed(1)}\u00a0min`
    : `${(s / 3600).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}\u00a0h`;
}

// A moment, exact to the second, in hours: 26:03:04.
function clock(s) {
  if (s === null || s === undefined) return "–";
  const whole = Math.round(s);
  const two = (n) => String(n).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor((whole % 3600) / 60))}:${two(whole % 60)}`;
}

// Durations in one unit, so that they can be compared down a column.
function durations(values) {
  const positive = values.filter((v) => v > 0);
  if (!positive.length) return duration;
  const middle = Math.sqrt(Math.min(...positive) * Math.max(...positive));
  const [unit, seconds, digits] = middle < 600 ? ["s", 1, 0] : middle < 7200 ? ["min", 60, 1] : ["h", 3600, 2];
  return (s) =>
    `${(s / seconds).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}\u00a0${unit}`;
}

const compact = (n) =>
  n >= 1e6 ? `${+(n / 1e6).toPrecision(3)}M` : n >= 1e4 ? `${+(n / 1e3).toPrecision(3)}k` : count(+n.toPrecision(4));

// --- Scales and ticks ---

const linear = (d0, d1, r0, r1) => (v) => r0 + ((v - d0) / (d1 - d0 || 1)) * (r1 - r0);

function niceStep(span, most) {
  const raw = span / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw * 0.999);
}

function ticks(from, to, most) {
  if (!(to > from)) return [from];
  const step = niceStep(to - from, most);
  const found = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) found.push(k * step);
  return found;
}

// Numbers of slots come in powers of two.
function slotTicks(most) {
  const step = 2 ** Math.max(Math.ceil(Math.log2(most / 4)), 0);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, k) => k * step);
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

// Ticks of a time axis, and the unit that suits what is shown.
function timeTicks(from, to, most) {
  const raw = (to - from) / Math.max(most, 1);
  const step = TIME_STEPS.find((s) => s >= raw) ?? 86400 * niceStep((to - from) / 86400, most);
  const unit =
    to - from > 5 * 86400
      ? ["days", 86400]
      : step >= 1800
        ? ["hours", 3600]
        : step >= 60 && to <= 7200
          ? ["minutes", 60]
          : step >= 60
            ? ["h:min", 0]
            : ["h:min:s", 0];
  const label = (t) => {
    if (unit[1]) return String(+(t / unit[1]).toFixed(4));
    const text = `${Math.floor(t / 3600)}:${String(Math.floor((t % 3600) / 60)).padStart(2, "0")}`;
    return step >= 60 ? text : `${text}:${String(Math.round(t % 60)).padStart(2, "0")}`;
  };
  const found = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) found.push(k * step);
  return { unit: unit[0], ticks: found.map((t) => [t, label(t)]) };
}

const LOG_TIMES = [
  [0.1, "0.1 s"],
  [1, "1 s"],
  [10, "10 s"],
  [60, "1 min"],
  [600, "10 min"],
  [3600, "1 h"],
  [36000, "10 h"],
  [360000, "100 h"],
  [3600000, "1,000 h"],
  [36000000, "10,000 h"],
];

// A logarithmic axis of durations that covers the values.
function logTimes(low, high, r0, r1) {
  const d0 = Math.max(low, 0.1) / 1.15;
  const d1 = Math.max(high, low * 1.5, 1) * 1.15;
  const scale = (v) => r0 + ((Math.log(Math.max(v, d0)) - Math.log(d0)) / (Math.log(d1) - Math.log(d0))) * (r1 - r0);
  scale.invert = (x) => Math.exp(Math.log(d0) + ((x - r0) / (r1 - r0)) * (Math.log(d1) - Math.log(d0)));
  scale.ticks = LOG_TIMES.filter(([v]) => v >= d0 && v <= d1);
  if (scale.ticks.length < 2) scale.ticks = [low, Math.sqrt(low * high), high].map((v) => [v, duration(v)]);
  return scale;
}

// --- What is said at the pointer ---

const tip = {
  show(x, y, ...children) {
    const box = byId("tip");
    box.replaceChildren(...children);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 16 + width > innerWidth - 8 ? x - 16 - width : x + 16;
    const top = y + 16 + height > innerHeight - 8 ? y - 16 - height : y + 16;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${Math.max(8, top)}px`;
  },
  hide() {
    byId("tip").hidden = true;
  },
};

function partsOfJob(table, job) {
  const values = PARTS.map(([key]) => table[key][job]);
  return { values, total: values.reduce((a, b) => a + b, 0) };
}

function stack(values, total, tall = false) {
  const bar = el("div", { class: tall ? "stack tall" : "stack" });
  PARTS.forEach(([key, label], k) => {
    if (values[k] > 0)
      bar.append(
        el("i", {
          class: key === "paused" ? "hatched" : null,
          title: `${label}: ${duration(values[k])}`,
          style: { "background-color": `var(--${key})`, width: `${(100 * values[k]) / (total || 1)}%` },
        }),
      );
  });
  return bar;
}

// --- Drawing again when the width, the theme or the medium changes ---

const drawings = [];

function draws(id, draw) {
  const again = () => {
    const width = Math.floor(byId(id).clientWidth);
    if (width > 0) draw(byId(id), width);
  };
  drawings.push(again);
  return again;
}

const drawAll = () => drawings.forEach((draw) => draw());

const soon = (() => {
  const waiting = new Set();
  return (work) => {
    if (waiting.has(work)) return;
    waiting.add(work);
    requestAnimationFrame(() => {
      waiting.delete(work);
      work();
    });
  };
})();
