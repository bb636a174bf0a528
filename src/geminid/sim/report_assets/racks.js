// Racks over time: a lane for every node, grouped by rack, under one policy. Colours say how far apart a job's nodes are.

const TIERS = ["on one node", "in one rack", "across racks", "across zones"];
const RACK_LINE_PX = 5;
const RACK_GAP_PX = 6;

const hasRacks = data.racks.length > 1;

// How far apart the nodes of an allocation are: an index into TIERS.
function tierOf(allocation) {
  if (allocation.tier === undefined) {
    const racks = new Set(allocation.indices.map((node) => data.rack[node]));
    const zones = new Set([...racks].map((rack) => data.racks[rack]?.zone));
    allocation.tier = allocation.indices.length < 2 ? 0 : racks.size < 2 ? 1 : zones.size < 2 ? 2 : 3;
  }
  return allocation.tier;
}

const tierColours = () => TIERS.map((_, k) => rampColour(k / (TIERS.length - 1)));
const tiersShown = () => (new Set(data.racks.map((rack) => rack.zone)).size > 1 ? TIERS : TIERS.slice(0, 3));

// Where every node's lane begins, rack after rack, in lines of one slot; and where every rack does.
function lanes() {
  const order = data.nodes.map((_, node) => node).sort((a, b) => data.rack[a] - data.rack[b] || a - b);
  const top = new Float64Array(data.nodes.length);
  const racks = [];
  let line = 0;
  for (const node of order) {
    const rack = data.rack[node];
    if (!racks.length || racks.at(-1).rack !== rack) racks.push({ rack, from: line, gaps: racks.length });
    top[node] = line;
    line += data.node_slots[node];
    racks.at(-1).to = line;
  }
  return { top, racks, lines: line };
}

const drawRacks = draws("racks", (node, width) => {
  if (!hasRacks || !data.policies.length) return;
  const lines = data.timeline(state.policy);
  const { top, racks, lines: all } = lanes();
  const line = Math.min(RACK_LINE_PX, Math.max(560 / all, 0.5));
  const height = Math.ceil(all * line + racks.length * RACK_GAP_PX + 36);
  const sheet = byId("rack-lanes");
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  sheet.width = Math.round(width * ratio);
  sheet.height = Math.round(height * ratio);
  sheet.style.height = `${height}px`;
  sheet.setAttribute("aria-label", `Slots of ${plural(racks.length, "rack")} under ${data.policies[state.policy].name}`);
  const context = sheet.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const [left, right] = [width < 640 ? 76 : 168, width - 8];
  const [t0, t1] = jobTimeShown();
  const x = linear(t0, t1, left, right);
  const gaps = new Map(racks.map((rack) => [rack.rack, rack.gaps * RACK_GAP_PX]));
  const y = (at, rack) => at * line + gaps.get(rack);
  drawAxes(context, { left, right, top: 0, bottom: height - 34, x }, width, height);
  context.textAlign = "right";
  for (const { rack, from, to } of racks) {
    context.fillStyle = cssColour("grid");
    context.fillRect(left, y(from, rack), right - left, (to - from) * line);
    context.fillStyle = cssColour("ink");
    context.fillText(fitted(context, data.racks[rack].name, left - 14), left - 8, y((from + to) / 2, rack) + 4);
  }
  context.textAlign = "left";
  // Slots are counted, not named: a job gets the lines of its nodes that have been free for longest.
  const colours = tierColours();
  const free = data.nodes.map((_, n) => new Float64Array(data.node_slots[n]));
  const order = lines.start.map((_, i) => i).sort((a, b) => lines.start[a] - lines.start[b]);
  for (const i of order) {
    const allocation = lines.allocations[lines.at[i]];
    const [a, b] = [x(Math.max(lines.start[i], t0)), x(Math.min(lines.end[i], t1))];
    context.fillStyle = colours[tierOf(allocation)];
    allocation.indices.forEach((n, k) => {
      if (!free[n]) return;
      const ends = [...free[n].keys()].sort((p, q) => free[n][p] - free[n][q] || p - q);
      for (const slot of ends.slice(0, allocation.nodes[k][1])) {
        free[n][slot] = lines.end[i];
        if (b > a) context.fillRect(a, y(top[n] + slot, data.rack[n]), Math.max(b - a, 0.5), line > 2 ? line - 0.5 : line);
      }
    });
  }
  byId("racks-legend").replaceChildren(
    ...tiersShown().map((name, k) => el("span", {}, swatch(colours[k]), `jobs ${name}`)),
  );
});

function showRacks() {
  byId("racks-part").hidden = !hasRacks;
  byId("racks-link").hidden = !hasRacks;
  if (hasRacks) COLOURS.push(["tier", "Distance of its nodes"]);
}
