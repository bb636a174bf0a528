// Curves of a job over time, all on one time axis, with its resizes marked.

import { html, useEffect, useRef, useState } from "./dom.js";
import { css, useWidth } from "./parts.js";
import { clock, moment, number } from "./text.js";
import uPlot from "./vendor/uplot.js";

const HEIGHT_PX = 170;
const COLOURS = ["job-0", "job-1", "job-2", "job-3"];
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];

// Charts that share a key move their cursors together.
const SYNC = uPlot.sync("job");

function marks(times) {
  return {
    hooks: {
      draw: [
        (plot) => {
          const { ctx } = plot;
          ctx.save();
          ctx.strokeStyle = css("muted");
          ctx.setLineDash([3, 3]);
          for (const at of times()) {
            const x = plot.valToPos(at, "x", true);
            if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
            ctx.beginPath();
            ctx.moveTo(x, plot.bbox.top);
            ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
            ctx.stroke();
          }
          ctx.restore();
        },
      ],
    },
  };
}

// lines: [{ label, values, step }] over `times`; `resized` are moments to mark.
export function Curves({ title, times, lines, resized, unit = "" }) {
  const box = useRef(null);
  const plot = useRef(null);
  const width = useWidth(box);
  const marked = useRef(resized);
  marked.current = resized;
  const [open, setOpen] = useState(false);
  const kept = lines.filter((line) => line.values.some((value) => value !== null && value !== undefined));
  const shape = `${kept.map((line) => line.label).join("|")} ${width}`;
  useEffect(() => {
    if (!width || !kept.length) return undefined;
    const axis = { stroke: css("muted"), grid: { stroke: css("grid"), width: 1 }, ticks: { stroke: css("grid") }, font: "11px system-ui" };
    const options = {
      width: Math.floor(width),
      height: HEIGHT_PX,
      cursor: { sync: { key: SYNC.key } },
      plugins: [marks(() => marked.current)],
      axes: [
        { ...axis, size: 30, space: 90, values: (_, times) => times.map((at) => clock(at, times.at(-1))) },
        { ...axis, size: 58, values: (_, values) => values.map((value) => number(value, 3)) },
      ],
      series: [
        { value: (_, value) => (value === null ? "–" : moment(value)) },
        ...kept.map((line, k) => ({
          label: line.label,
          stroke: css(COLOURS[k % COLOURS.length]),
          dash: DASHES[k % DASHES.length],
          width: 1.6,
          spanGaps: true,
          points: { show: (plot) => plot.data[0].length < 3 },
          paths: line.step ? uPlot.paths.stepped({ align: 1 }) : undefined,
          value: (_, value) => (value === null || value === undefined ? "–" : `${number(value)}${unit}`),
        })),
      ],
    };
    plot.current = new uPlot(options, [times, ...kept.map((line) => line.values)], box.current);
    return () => plot.current.destroy();
  }, [shape]);
  useEffect(() => {
    plot.current?.setData([times, ...kept.map((line) => line.values)]);
  }, [times, lines]);
  const label = (value) => (value === null || value === undefined ? "–" : number(value));
  return html`<section class="chart">
    <h3>${title}</h3>
    <div ref=${box} aria-hidden="true"></div>
    ${!kept.length && html`<p class="note">Not measured yet.</p>`}
    <details onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary>The same as a table</summary>
      ${open &&
      html`<div class="table" tabindex="0" role="region" aria-label=${title}><table>
        <thead><tr><th scope="col">time</th>${kept.map((line) => html`<th scope="col" class="num">${line.label}</th>`)}</tr></thead>
        <tbody>${times.map((at, i) => html`<tr><td>${moment(at)}</td>${kept.map((line) => html`<td class="num">${label(line.values[i])}</td>`)}</tr>`)}</tbody>
      </table></div>`}
    </details>
  </section>`;
}
