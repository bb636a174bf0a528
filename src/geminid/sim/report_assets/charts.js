// The charts over all jobs: completion times, and where time went.

function frame(width, height, label) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": label });
}

// Put a drawing into its place; the keyboard's focus stays on it.
function place(node, root) {
  const focused = node.contains(document.activeElement);
  node.replaceChildren(root);
  if (focused) root.focus({ preventScroll: true });
}

const pointerX = (event, root) => event.clientX - root.getBoundingClientRect().left;

const shownPolicies = () => data.policies.map((_, i) => i).filter((i) => !state.hidden.has(i));

function jctRange() {
  let [low, high] = [Infinity, -Infinity];
  for (const policy of data.policies) {
    const x = policy.cdf[0];
    if (x.length) [low, high] = [Math.min(low, x[0]), Math.max(high, x[x.length - 1])];
  }
  return low <= high ? [low, high] : [1, 3600];
}

const nothing = (node, text) => node.replaceChildren(el("p", { class: "lead" }, text));

// --- Share of jobs completed within a time ---

const drawCdf = draws("cdf", (node, width) => {
  if (!data.policies.some((p) => p.cdf[0].length)) return nothing(node, "No job was completed.");
  const height = Math.min(Math.max(width > 560 ? boxesHeight() - 54 : 0, 300), 460);
  const [left, right, top, bottom] = [44, width - 10, 8, height - 40];
  const x = logTimes(...jctRange(), left, right);
  const y = linear(0, 1000, bottom, top);
  const root = frame(width, height, "Share of jobs completed within a time, by policy");
  for (const share of [0, 250, 500, 750, 1000]) {
    root.append(
      svg("line", { class: share ? "grid" : "axis", x1: left, x2: right, y1: y(share), y2: y(share) }),
      svg(
        "text",
        { x: left - 7, y: y(share) + 4, "text-anchor": "end" },
        share === 1000 ? "100 %" : String(share / 10),
      ),
    );
  }
  logAxis(root, x, top, bottom, right);
  root.append(
    svg("text", { x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, "Job completion time (logarithmic)"),
  );
  for (const i of shownPolicies()) {
    const [times, shares] = data.policies[i].cdf;
    if (!times.length) continue;
    let path = `M${x(times[0]).toFixed(1)},${bottom}`;
    times.forEach((t, k) => {
      path += `H${x(t).toFixed(1)}V${y(shares[k]).toFixed(1)}`;
    });
    path += shares[shares.length - 1] >= 1000 ? `H${right}` : "";
    root.append(
      svg("path", {
        d: path,
        fill: "none",
        "stroke-width": i === state.policy ? 2.6 : 1.8,
        "stroke-linejoin": "round",
        "stroke-dasharray": policyDash(i),
        style: { stroke: policyColour(i) },
      }),
    );
  }
  const cross = svg("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
  root.append(cross);
  place(node, root);

  const point = (px) => {
    const at = Math.min(Math.max(px, left), right);
    cross.setAttribute("x1", at);
    cross.setAttribute("x2", at);
    cross.setAttribute("visibility", "visible");
    readCdf(x.invert(at));
    return at;
  };
  let at = (left + right) / 2;
  root.addEventListener("pointermove", (event) => (at = point(pointerX(event, root))));
  root.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    readCdf(null);
  });
  keys(root, (key) => {
    const step = { ArrowLeft: -10, ArrowRight: 10 }[key];
    if (step) at = point(at + step);
    return Boolean(step);
  });
  readCdf(null);
});

// Make a drawing reachable by the Tab key; act says whether it used the key.
function keys(node, act) {
  node.setAttribute("tabindex", "0");
  node.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && act(event.key)) event.preventDefault();
  });
}

function logAxis(root, x, top, bottom, right) {
  let last = -Infinity;
  for (const [value, label] of x.ticks) {
    const at = x(value);
    root.append(svg("line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom }));
    if (at - last < 46) continue;
    root.append(svg("text", { x: Math.min(at, right - 8), y: bottom + 16, "text-anchor": "middle" }, label));
    last = at;
  }
}

function readCdf(time) {
  const shown = shownPolicies().filter((i) => data.policies[i].cdf[0].length);
  if (time === null) {
    byId("cdf-readout").replaceChildren("Point at the chart, or focus it and use the arrow keys, to read values.");
    return;
  }
  byId("cdf-readout").replaceChildren(
    el("span", {}, "Within ", el("b", {}, duration(time)), ":"),
    ...shown.map((i) =>
      el(
        "span",
        {},
        swatch(policyColour(i)),
        data.policies[i].name,
        " ",
        el("b", {}, percent(shareWithin(i, time) / 1000, 1)),
      ),
    ),
  );
}

function shareWithin(policy, time) {
  const [times, shares] = data.policies[policy].cdf;
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low ? shares[low - 1] : 0;
}

// --- By application ---

function boxSizes() {
  const policies = shownPolicies().length;
  const each = policies > 6 ? 7 : 9;
  return { each, rowHeight: Math.max(policies * each + 10, 22) };
}

const boxesHeight = () => data.groups.length * boxSizes().rowHeight + 40;

const drawBoxes = draws("boxes", (node, width) => {
  const shown = shownPolicies();
  const finite = data.policies.flatMap((p) => p.boxes.filter((b) => b[0]).flatMap((b) => [b[1], b[5]]));
  if (!finite.length) return nothing(node, "No job was completed.");
  const { each, rowHeight } = boxSizes();
  const left = Math.min(150, width * 0.34);
  const right = width - 10;
  const bottom = data.groups.length * rowHeight + 4;
  const height = boxesHeight();
  const x = logTimes(Math.min(...finite), Math.max(...finite), left, right);
  const root = frame(width, height, "Job completion time by application and policy");
  logAxis(root, x, 0, bottom, right);
  data.groups.forEach((name, row) => {
    const top = row * rowHeight;
    root.append(svg("line", { class: "grid", x1: 0, x2: right, y1: top + rowHeight, y2: top + rowHeight }));
    root.append(clipped(name, left - 8, 0, top + rowHeight / 2 + 4));
    shown.forEach((i, k) => {
      const [n, p5, p25, p50, p75, p95] = data.policies[i].boxes[row];
      if (!n) return;
      const y = top + (rowHeight - shown.length * each) / 2 + k * each;
      const group = svg("g", { style: { color: policyColour(i) } });
      group.append(
        svg("rect", { x: left, y, width: right - left, height: each, fill: "transparent" }),
        svg("line", { x1: x(p5), x2: x(p95), y1: y + each / 2, y2: y + each / 2, stroke: "currentColor" }),
        svg("rect", {
          x: x(p25),
          y: y + 1.5,
          width: Math.max(x(p75) - x(p25), 1),
          height: each - 3,
          fill: "currentColor",
          "fill-opacity": 0.4,
        }),
        svg("rect", { x: x(p50) - 1.5, y: y + 0.5, width: 3, height: each - 1, fill: "currentColor" }),
      );
      group.addEventListener("pointermove", (event) =>
        tip.show(
          event.clientX,
          event.clientY,
          el("p", { class: "title" }, name),
          el("p", { class: "dim" }, `${data.policies[i].name}, ${plural(n, "job")}`),
          el(
            "div",
            { class: "pairs" },
            ...["5 %", p5, "25 %", p25, "Median", p50, "75 %", p75, "95 %", p95].map((v) =>
              el("span", {}, typeof v === "number" ? duration(v) : v),
            ),
          ),
        ),
      );
      group.addEventListener("pointerleave", tip.hide);
      root.append(group);
    });
  });
  root.append(
    svg("text", { x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, "Job completion time (logarithmic)"),
  );
  node.replaceChildren(root);
});

// Text that is cut where it would not fit, and whole when pointed at.
function clipped(text, room, x, y) {
  const most = Math.max(Math.floor(room / 6.6), 3);
  const shown = text.length > most ? `${text.slice(0, most - 1)}…` : text;
  return svg("text", { class: "strong", x, y }, shown, svg("title", {}, text));
}

// --- Where time went ---

let spentAsShare = false;

const drawSpent = draws("spent", (node, width) => {
  const policies = data.policies;
  byId("spent-caption").textContent = spentAsShare
    ? "Share of the completion time, all completed jobs"
    : "Mean per completed job";
  if (!policies.length) return nothing(node, "No policy was simulated.");
  const row = 30;
  const left = Math.min(170, width * 0.3);
  const right = width - (spentAsShare ? 16 : 76);
  const bottom = policies.length * row + 2;
  const totals = policies.map((p) => p.spent.reduce((a, b) => a + b, 0));
  const say = durations(totals);
  const longest = spentAsShare ? 1 : Math.max(...totals, 1);
  const x = linear(0, longest, left, right);
  const root = frame(width, bottom + 38, "Where time went, by policy");
  root.append(hatchPattern());
  const axis = spentAsShare
    ? { unit: "", ticks: [0, 0.25, 0.5, 0.75, 1].map((v) => [v, percent(v)]) }
    : timeTicks(0, longest, Math.max(Math.floor((right - left) / 90), 2));
  for (const [value, label] of axis.ticks) {
    root.append(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: 0, y2: bottom }));
    root.append(svg("text", { x: x(value), y: bottom + 15, "text-anchor": "middle" }, label));
  }
  if (!spentAsShare)
    root.append(
      svg("text", { x: (left + right) / 2, y: bottom + 33, "text-anchor": "middle" }, `Time per job (${axis.unit})`),
    );
  policies.forEach((policy, i) => {
    const top = i * row + 4;
    root.append(clipped(policy.name, left - 10, 0, top + 15));
    let from = 0;
    policy.spent.forEach((seconds, k) => {
      const part = totals[i] ? seconds / totals[i] : 0;
      const value = spentAsShare ? part : seconds;
      const [x0, x1] = [x(from), x(from + value)];
      from += value;
      if (x1 - x0 < 0.05) return;
      const [key, label] = PARTS[k];
      const bar = svg(
        "g",
        {},
        svg("rect", { x: x0, y: top, width: x1 - x0, height: row - 9, style: { fill: `var(--${key})` } }),
      );
      if (key === "paused")
        bar.append(svg("rect", { x: x0, y: top, width: x1 - x0, height: row - 9, fill: "url(#hatch)" }));
      bar.append(svg("line", { x1, x2: x1, y1: top, y2: top + row - 9, style: { stroke: "var(--bg)" } }));
      bar.addEventListener("pointermove", (event) =>
        tip.show(
          event.clientX,
          event.clientY,
          el("p", { class: "title" }, label),
          el("p", {}, `${policy.name}: ${duration(seconds)} per job, ${percent(part, 1)}`),
        ),
      );
      bar.addEventListener("pointerleave", tip.hide);
      root.append(bar);
    });
    if (!spentAsShare) root.append(svg("text", { class: "strong", x: x(totals[i]) + 7, y: top + 15 }, say(totals[i])));
  });
  node.replaceChildren(root);
});

function hatchPattern() {
  return svg(
    "pattern",
    { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 2.2, height: 5, fill: "#fff", "fill-opacity": 0.45 }),
  );
}

function fillSpentTable() {
  const head = el(
    "tr",
    {},
    el("th", { scope: "col" }, "Policy"),
    ...PARTS.map(([, label]) => el("th", { scope: "col" }, label)),
    el("th", { scope: "col" }, "Completion time"),
  );
  const all = data.policies.map((policy) => [...policy.spent, policy.spent.reduce((a, b) => a + b, 0)]);
  const say = all.length ? all[0].map((_, k) => durations(all.map((row) => row[k]))) : [];
  const rows = data.policies.map((policy) => {
    const total = policy.spent.reduce((a, b) => a + b, 0);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, policy.name),
      ...policy.spent.map((s, k) =>
        el("td", {}, `${say[k](s)} · ${percent(total ? s / total : 0, s / (total || 1) < 0.1 ? 1 : 0)}`),
      ),
      el("td", {}, say[PARTS.length](total)),
    );
  });
  byId("spent-table").replaceChildren(el("thead", {}, head), el("tbody", {}, ...rows));
}

const partsLegend = () => PARTS.map(([key, label]) => el("span", {}, swatch(`var(--${key})`, key === "paused"), label));
