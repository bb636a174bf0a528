// Lanes of slots over time, on a canvas: a row for each slot, in groups (nodes, or racks). The simulation report and the
// dashboard draw with this.
//
// model: rows, groups [{ label, from, to }] in rows, stints [{ row, start, end, fill, label }] in the order of drawing.
// view: { left, right, top, t0, t1, row, gap, colours: { grid, ink, halo } }, with `row` and `gap` in pixels.

export const lanesHeight = (model, view) => model.rows * view.row + model.groups.length * view.gap;

export function laneScale(model, view) {
  const shift = new Float64Array(model.rows);
  model.groups.forEach((group, k) => shift.fill(k * view.gap, group.from, group.to));
  const perSecond = (view.right - view.left) / (view.t1 - view.t0 || 1);
  return {
    x: (t) => view.left + (t - view.t0) * perSecond,
    y: (row) => view.top + row * view.row + (shift[Math.min(Math.floor(row), model.rows - 1)] || 0),
    time: (x) => view.t0 + (x - view.left) / perSecond,
    rowAt: (y) => {
      for (const group of model.groups) {
        const first = view.top + group.from * view.row + shift[group.from];
        if (y >= first && y < first + (group.to - group.from) * view.row) return group.from + Math.floor((y - first) / view.row);
      }
      return -1;
    },
  };
}

export function drawLanes(context, model, view) {
  const { x, y } = laneScale(model, view);
  const tall = view.row > 2 ? view.row - Math.min(view.row * 0.12, 2) : view.row;
  context.textBaseline = "middle";
  for (const { label, from, to } of model.groups) {
    context.fillStyle = view.colours.grid;
    context.fillRect(view.left, y(from), view.right - view.left, (to - from) * view.row);
    context.fillStyle = view.colours.ink;
    context.textAlign = "right";
    context.fillText(shortened(context, label, view.left - 14), view.left - 8, y(from) + ((to - from) * view.row) / 2);
  }
  context.textAlign = "left";
  // What is narrower than half a pixel is drawn once for all that lies in it.
  const drawnTo = new Float64Array(model.rows).fill(-Infinity);
  for (const stint of model.stints) {
    if (stint.end < view.t0 || stint.start > view.t1) continue;
    const a = x(Math.max(stint.start, view.t0));
    const b = x(Math.min(stint.end, view.t1));
    if (b <= drawnTo[stint.row] && b - a < 0.5) continue;
    drawnTo[stint.row] = Math.max(b, a + 0.5);
    context.fillStyle = stint.fill;
    context.fillRect(a, y(stint.row), Math.max(b - a, 0.5), tall);
    if (stint.label && tall >= 11 && b - a > 18) {
      const text = shortened(context, stint.label, b - a - 6);
      context.fillStyle = view.colours.halo;
      context.fillText(text, a + 4, y(stint.row) + tall / 2 + 0.5);
    }
  }
  context.textBaseline = "alphabetic";
}

// Text cut in the middle where it would not fit: the ends of names distinguish them.
export function shortened(context, text, room) {
  const full = context.measureText(text).width;
  if (full <= room) return text;
  const cut = (n) => `${text.slice(0, Math.ceil(n / 2))}…${text.slice(text.length - Math.floor(n / 2))}`;
  let n = Math.max(Math.floor((text.length * room) / full), 2);
  while (n > 2 && context.measureText(cut(n)).width > room) n--;
  return cut(n);
}
