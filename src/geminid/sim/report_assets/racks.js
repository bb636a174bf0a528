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
  const { top, racks, lines: rows } = lanes();
  const groups = racks.map(({ rack, from, to }) => ({ label: data.racks[rack].name, from, to }));
  const row = Math.min(RACK_LINE_PX, Math.max(560 / rows, 0.5));
  const [t0, t1] = jobTimeShown();
  const colours = { grid: cssColour("grid"), ink: cssColour("ink"), halo: cssColour("bg") };
  const view = { left: width < 640 ? 76 : 168, right: width - 8, top: 0, t0, t1, row, gap: RACK_GAP_PX, colours };
  const model = { rows, groups, stints: slotStints(top) };
  const height = Math.ceil(lanesHeight(model, view) + 36);
  const sheet = byId("rack-lanes");
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  sheet.width = Math.round(width * ratio);
  sheet.height = Math.round(height * ratio);
  sheet.style.height = `${height}px`;
  sheet.setAttribute("aria-label", `Slots of ${plural(racks.length, "rack")} under ${data.policies[state.policy].name}`);
  const context = sheet.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawAxes(context, { ...view, bottom: height - 34, x: laneScale(model, view).x }, width, height);
  drawLanes(context, model, view);
  byId("racks-legend").replaceChildren(
    ...tiersShown().map((name, k) => el("span", {}, swatch(tierColours()[k]), `jobs ${name}`)),
  );
});

// Slots are counted, not named: a job gets the lanes of its nodes that have been free for longest.
function slotStints(top) {
  const lines = data.timeline(state.policy);
  const colours = tierColours();
  const free = data.nodes.map((_, n) => new Float64Array(data.node_slots[n]));
  const order = lines.start.map((_, i) => i).sort((a, b) => lines.start[a] - lines.start[b]);
  const stints = [];
  for (const i of order) {
    const allocation = lines.allocations[lines.at[i]];
    const fill = colours[tierOf(allocation)];
    allocation.indices.forEach((n, k) => {
      if (!free[n]) return;
      const ends = [...free[n].keys()].sort((p, q) => free[n][p] - free[n][q] || p - q);
      for (const slot of ends.slice(0, allocation.nodes[k][1])) {
        free[n][slot] = lines.end[i];
        stints.push({ row: top[n] + slot, start: lines.start[i], end: lines.end[i], fill });
      }
    });
  }
  return stints;
}

function showRacks() {
  byId("racks-part").hidden = !hasRacks;
  byId("racks-link").hidden = !hasRacks;
  if (hasRacks) COLOURS.push(["tier", "Distance of its nodes"]);
}
