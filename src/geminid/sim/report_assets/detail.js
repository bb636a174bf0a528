// One job: its numbers under every policy, its slots and batch sizes over time, and every allocation it had.

const MAX_LISTED = 300;

function closeDetail() {
  if (state.job === null) return;
  const focused = byId("detail").contains(document.activeElement);
  state.job = null;
  byId("detail").hidden = true;
  if (focused) canvas.focus();
  soon(drawTimeline);
}

function showDetail(scroll) {
  const panel = byId("detail");
  if (state.job === null) {
    panel.hidden = true;
    return;
  }
  const job = state.job;
  const table = data.table(state.policy);
  const { values, total } = partsOfJob(table, job);
  const completed = table.completed[job];
  const facts = [
    ["Submitted", clock(data.jobs.submitted[job])],
    ["First slots", clock(table.started[job])],
    ["Completed", completed === null ? "never" : clock(completed)],
    ["Completion time", completed === null ? "–" : duration(total)],
    ["Slots asked for", count(data.jobs.asked[job])],
    ["GPU time", duration(table.gpu_s[job])],
    ["Rescales", count(table.rescales[job])],
    ["Communication", table.communication[job] === null ? "–" : `${percent(table.communication[job] / 1000)} of work`],
    ...(data.sync_times[data.jobs.application[job]]
      ? [["Synchronisation times", data.sync_times[data.jobs.application[job]]]]
      : []),
    ["Finish-time fairness", table.ftf[job] === null ? "–" : table.ftf[job].toFixed(2)],
  ];
  panel.replaceChildren(
    el(
      "div",
      { class: "head" },
      el(
        "div",
        {},
        el("h3", { id: "detail-title" }, data.jobs.name[job]),
        el("p", {}, `${data.applications[data.jobs.application[job]]} · under ${data.policies[state.policy].name}`),
      ),
      el("button", { type: "button", id: "detail-close", onclick: closeDetail }, "Close"),
    ),
    el(
      "dl",
      { class: "facts" },
      ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    ),
    stack(values, total, true),
    el(
      "div",
      { class: "legend" },
      ...PARTS.map(([key, label], k) =>
        el(
          "span",
          {},
          swatch(`var(--${key})`, key === "paused"),
          `${label} ${duration(values[k])} (${percent(values[k] / (total || 1))})`,
        ),
      ),
    ),
    el(
      "figure",
      {},
      el("figcaption", {}, "Slots and total batch size over time ", el("small", { id: "job-readout" })),
      el("div", { class: "legend", id: "job-types" }),
      el("div", { class: "chart", id: "job-chart" }),
    ),
    el(
      "details",
      { open: data.policies.length > 1 && data.policies.length < 9 },
      el("summary", {}, "This job under every policy"),
      el("div", { class: "scroll" }, jobUnderPolicies(job)),
    ),
    allocationsList(job),
  );
  panel.hidden = false;
  drawJob();
  if (scroll) panel.scrollIntoView({ block: "nearest" });
}

function jobUnderPolicies(job) {
  const head = ["Policy", "Completion time", ...PARTS.map(([, label]) => label), "Rescales", "GPU time"];
  const rows = data.policies.map((policy, i) => {
    const table = data.table(i);
    const { values, total } = partsOfJob(table, job);
    const cells = [
      table.completed[job] === null ? "unfinished" : duration(total),
      ...values.map(duration),
      count(table.rescales[job]),
      duration(table.gpu_s[job]),
    ];
    return el(
      "tr",
      { class: i === state.policy ? "chosen" : null },
      el("th", { scope: "row" }, policy.name),
      ...cells.map((text) => el("td", {}, text)),
    );
  });
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...rows),
  );
}

function allocationsList(job) {
  const lines = data.timeline(state.policy);
  const [from, to] = [lines.first[job], lines.first[job + 1]];
  const list = el("details", {}, el("summary", {}, `Every allocation and batch size (${count(to - from)})`));
  // Rows are made when somebody wants to see them.
  list.addEventListener("toggle", () => {
    if (!list.open || list.children.length > 1) return;
    const head = [
      "From",
      "Working from",
      "To",
      "Slots",
      "Nodes",
      "Batch",
      "Useful",
      "Lost to scaling",
      "Lost to statistics",
    ];
    const text = new Set(["Slots", "Nodes", "Batch"]);
    const rows = [];
    for (let i = from; i < Math.min(to, from + MAX_LISTED); i++) {
      const allocation = lines.allocations[lines.at[i]];
      const lost = [lines.scaling[i] / 1000, lines.statistics[i] / 1000];
      const cells = [
        clock(lines.start[i]),
        clock(lines.works[i]),
        clock(lines.end[i]),
        slotsOn(allocation),
        nodesOf(allocation),
        batchOf(lines, i),
        percent(1 - lost[0] - lost[1]),
        percent(lost[0]),
        percent(lost[1]),
      ];
      rows.push(
        el(
          "tr",
          {},
          ...cells.map((value, k) =>
            el("td", { class: head[k] === "Nodes" ? "text wrap" : text.has(head[k]) ? "text" : null }, value),
          ),
        ),
      );
    }
    const table = el(
      "table",
      {},
      el(
        "thead",
        {},
        el("tr", {}, ...head.map((h) => el("th", { scope: "col", class: text.has(h) ? "text" : null }, h))),
      ),
      el("tbody", {}, ...rows),
    );
    list.append(el("div", { class: "capped", tabindex: "0", role: "region", "aria-label": "Allocations" }, table));
    if (to - from > MAX_LISTED)
      list.append(el("p", { class: "lead" }, `The first ${MAX_LISTED} of ${count(to - from)} are listed.`));
  });
  return list;
}

// --- Slots and batch size over time ---

const drawJob = () => {
  const node = byId("job-chart");
  if (!node || state.job === null) return;
  const job = state.job;
  const width = Math.floor(node.clientWidth);
  if (width <= 0) return;
  const lines = data.timeline(state.policy);
  const [from, to] = [lines.first[job], lines.first[job + 1]];
  if (from === to) return nothing(node, "The job never had slots.");
  const table = data.table(state.policy);
  const begin = data.jobs.submitted[job];
  const finish = table.completed[job] ?? data.policies[state.policy].horizon;
  const [left, right] = [52, width - 8];
  const upper = [20, 108];
  const lower = [136, 214];
  const x = linear(begin, Math.max(finish, begin + 1), left, right);
  const root = frame(width, lower[1] + 36, "Slots and total batch size of the job over time");
  let [mostSlots, low, high] = [1, Infinity, 0];
  for (let i = from; i < to; i++) {
    mostSlots = Math.max(mostSlots, lines.allocations[lines.at[i]].slots);
    if (lines.total[i]) [low, high] = [Math.min(low, lines.total[i]), Math.max(high, lines.total[i])];
  }
  const slots = linear(0, mostSlots, upper[1], upper[0]);
  yAxis(root, slotTicks(mostSlots), slots, left, right, "Slots", upper[0]);
  const batches = batchScale(low, high, lower);
  if (high) yAxis(root, batches.ticks, batches, left, right, "Total batch size", lower[0]);
  else
    root.append(
      svg("text", { x: left + 8, y: (lower[0] + lower[1]) / 2 }, "Batch sizes are not modelled for this job."),
    );
  const axis = timeTicks(begin, Math.max(finish, begin + 1), Math.max(Math.floor((right - left) / 80), 2));
  for (const [t, label] of axis.ticks)
    root.append(
      svg("line", { class: "grid", x1: x(t), x2: x(t), y1: upper[0], y2: lower[1] }),
      svg("text", { x: x(t), y: lower[1] + 16, "text-anchor": "middle" }, label),
    );
  root.append(
    svg(
      "text",
      { x: (left + right) / 2, y: lower[1] + 33, "text-anchor": "middle" },
      `Time since the start (${axis.unit})`,
    ),
    hatchPattern(),
  );

  let path = "";
  const used = new Set();
  for (let i = from; i < to;) {
    const allocation = lines.allocations[lines.at[i]];
    const [start, works] = [lines.start[i], lines.works[i]];
    used.add(allocation.type);
    let end = start;
    for (
      const at = lines.at[i], first = i;
      i < to && lines.at[i] === at && (i === first || (lines.start[i] === end && lines.works[i] === lines.start[i]));
      i++
    ) {
      end = lines.end[i];
      if (!lines.total[i]) continue;
      const joined = i > from && lines.start[i] === lines.end[i - 1] && path;
      path += `${joined ? "L" : "M"}${x(lines.start[i]).toFixed(1)},${batches(lines.total[i]).toFixed(1)}H${x(end).toFixed(1)}`;
    }
    const top = slots(allocation.slots);
    const rect = (a, b, attributes) =>
      svg("rect", { x: x(a), y: top, width: Math.max(x(b) - x(a), 0.4), height: upper[1] - top, ...attributes });
    if (end > works) root.append(rect(Math.max(works, start), end, { style: { fill: typeColour(allocation.type) } }));
    if (works > start)
      root.append(
        rect(start, Math.min(works, end), { style: { fill: "var(--paused)" } }),
        rect(start, Math.min(works, end), { fill: "url(#hatch)" }),
      );
  }
  root.append(svg("path", { d: path, fill: "none", "stroke-width": 1.8, style: { stroke: "var(--accent)" } }));
  const cross = svg("line", { class: "cross", y1: upper[0], y2: lower[1], visibility: "hidden" });
  root.append(cross);
  place(node, root);
  readJob(node, root, cross, { lines, job, x, left, right, begin, finish, used });
};
drawings.push(drawJob);

function yAxis(root, marks, y, left, right, title, top) {
  for (const v of marks)
    root.append(
      svg("line", { class: "grid", x1: left, x2: right, y1: y(v), y2: y(v) }),
      svg("text", { x: left - 7, y: y(v) + 4, "text-anchor": "end" }, compact(v)),
    );
  root.append(svg("text", { x: left, y: top - 8 }, title));
}

// Batch sizes differ by factors: a logarithmic axis where they do.
function batchScale(low, high, [top, bottom]) {
  if (!(high > 0)) return () => bottom;
  const [d0, d1] = [Math.log2(low) - 0.15, Math.log2(high) + (high > low * 1.05 ? 0.35 : 1)];
  const scale = (v) => bottom - ((Math.log2(v) - d0) / (d1 - d0)) * (bottom - top);
  const step = Math.max(1, Math.ceil((d1 - d0) / 4));
  scale.ticks =
    high > low * 3
      ? Array.from({ length: Math.floor(d1 - Math.ceil(d0)) + 1 }, (_, k) => 2 ** (Math.ceil(d0) + k)).filter(
          (_, k) => k % step === 0,
        )
      : [...new Set([low, high])].filter((v, k, all) => !k || Math.abs(scale(v) - scale(all[0])) > 12);
  return scale;
}

function readJob(node, root, cross, { lines, job, x, left, right, begin, finish, used }) {
  byId("job-types").replaceChildren(
    ...[...used].sort((a, b) => a - b).map((type) => el("span", {}, swatch(typeColour(type)), data.types[type].name)),
    el("span", {}, swatch("var(--paused)", true), "paused"),
  );
  const say = (text) => (byId("job-readout").textContent = text);
  let at = left;
  const point = (px) => {
    at = Math.min(Math.max(px, left), right);
    const t = begin + ((at - left) / (right - left)) * (finish - begin);
    cross.setAttribute("x1", at);
    cross.setAttribute("x2", at);
    cross.setAttribute("visibility", "visible");
    const i = stintAt(lines, job, t);
    const allocation = i < 0 ? null : lines.allocations[lines.at[i]];
    say(
      `· ${clock(t)} · ${allocation ? `${slotsOn(allocation)} (${nodesOf(allocation)}) · ${t < lines.works[i] ? "paused" : `batch ${batchOf(lines, i)}`}` : "no slots"}`,
    );
  };
  root.addEventListener("pointermove", (event) => point(pointerX(event, root)));
  root.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    say("");
  });
  keys(root, (key) => {
    const step = { ArrowLeft: -10, ArrowRight: 10 }[key];
    if (step) point(at + step);
    return Boolean(step);
  });
  say("");
}
