// Parts that several pages use: a table that draws only the rows in sight, confirmed actions, and what went wrong.

import { ask, get } from "./api.js";
import { html, useCallback, useEffect, useRef, useState } from "./dom.js";

export const ROW_PX = 30;
const SPARE_ROWS = 12;
const STEP_PX = 6 * ROW_PX; // drawn again after so much scrolling: fewer rows than are spare

// columns: [{ key, title, num, cell(row), sort(row) }]; only the rows in sight are in the document.
export function Table({ label, columns, rows, empty, onOpen, windowed = true, sorting, setSorting }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const [chosen, choose] = useState(-1);
  const tall = box.current?.clientHeight || 700;
  const first = windowed ? Math.max(Math.floor(top / ROW_PX) - SPARE_ROWS, 0) : 0;
  const last = windowed ? Math.min(first + Math.ceil(tall / ROW_PX) + 2 * SPARE_ROWS, rows.length) : rows.length;
  const keys = (event) => {
    if (event.target !== event.currentTarget) return; // a heading or a link of the table has the focus
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (step) {
      const next = Math.min(Math.max(chosen + step, 0), rows.length - 1);
      choose(next);
      if (box.current && windowed) {
        const y = next * ROW_PX;
        if (y < box.current.scrollTop) box.current.scrollTop = y;
        if (y > box.current.scrollTop + box.current.clientHeight - 3 * ROW_PX)
          box.current.scrollTop = y - box.current.clientHeight + 3 * ROW_PX;
      }
      event.preventDefault();
    } else if (event.key === "Enter" && rows[chosen] && onOpen) onOpen(rows[chosen]);
  };
  const heading = (column) => {
    const by = sorting?.[0] === column.key ? sorting[1] : 0;
    const order = by > 0 ? "ascending" : by < 0 ? "descending" : undefined;
    const title = setSorting && column.sort
      ? html`<button type="button" onClick=${() => setSorting([column.key, by > 0 ? -1 : 1])}>
          ${column.title}${by > 0 ? " ▲" : by < 0 ? " ▼" : ""}
        </button>`
      : column.title;
    return html`<th scope="col" aria-sort=${order} class=${column.num && "num"}>${title}</th>`;
  };
  const spacer = (count) => count > 0 && html`<tr aria-hidden="true" style=${{ height: `${count * ROW_PX}px` }}></tr>`;
  return html`<div
    class=${windowed && rows.length > 15 ? "table windowed" : "table"}
    ref=${box}
    tabindex="0"
    role="region"
    aria-label=${label}
    onScroll=${(event) => windowed && setTop(event.currentTarget.scrollTop - (event.currentTarget.scrollTop % STEP_PX))}
    onKeyDown=${keys}
  >
    <table aria-rowcount=${rows.length + 1}>
      <thead><tr>${columns.map(heading)}</tr></thead>
      <tbody>
        ${spacer(first)}
        ${rows.slice(first, last).map(
          (row, i) => html`<tr
            key=${row.key ?? row.id ?? first + i}
            aria-rowindex=${first + i + 2}
            aria-selected=${first + i === chosen ? "true" : undefined}
          >
            ${columns.map((column) => html`<td class=${column.num && "num"}>${column.cell(row)}</td>`)}
          </tr>`,
        )}
        ${spacer(rows.length - last)}
      </tbody>
    </table>
    ${!rows.length && html`<p class="note bar">${empty ?? "Nothing to show."}</p>`}
  </div>`;
}

export function sorted(rows, columns, [key, order]) {
  const by = columns.find((column) => column.key === key)?.sort;
  if (!by) return rows;
  const value = (row) => by(row);
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === y) return 0;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return (x < y ? -1 : 1) * order;
  });
}

export const Phase = ({ phase }) => html`<span class=${`phase ${phase}`}>${phase}</span>`;

export function Meter({ share, label }) {
  if (share === null || share === undefined) return "–";
  const text = `${(100 * share).toFixed(share < 1 ? 1 : 0)} %`;
  return html`<span class="meter" aria-hidden="true"><i style=${{ width: `${100 * share}%` }}></i></span>${label ?? text}`;
}

export const Problem = ({ text }) => text && html`<p class="problem" role="alert">${text}</p>`;

// Something that is read once, and again when asked for or every few seconds.
export function useAnswer(path, everyMs = 0) {
  const [state, set] = useState({ data: null, problem: "", loading: true });
  const [turn, again] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    const read = () =>
      get(path, { signal: control.signal })
        .then((data) => set({ data, problem: "", loading: false }))
        .catch((problem) => {
          if (problem.name !== "AbortError") set((old) => ({ ...old, problem: problem.message, loading: false }));
        })
        .finally(() => {
          if (everyMs && !control.signal.aborted) timer = setTimeout(() => (document.hidden ? wait() : read()), everyMs);
        });
    const wait = () => {
      timer = setTimeout(() => (document.hidden ? wait() : read()), everyMs);
    };
    read();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [path, turn, everyMs]);
  return { ...state, again: useCallback(() => again((n) => n + 1), []) };
}

// A button that asks before it acts, and shows the command that does the same.
export function Action({ title, question, command, method = "POST", path, body, danger, done, opened, children, disabled }) {
  const dialog = useRef(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const act = async () => {
    setBusy(true);
    try {
      const answer = await ask(method, typeof path === "function" ? path() : path, typeof body === "function" ? body() : body);
      setProblem("");
      dialog.current.close();
      done?.(answer);
    } catch (trouble) {
      setProblem(trouble.message);
    } finally {
      setBusy(false);
    }
  };
  const open = () => {
    setProblem("");
    opened?.();
    dialog.current.showModal();
  };
  const shown = typeof command === "function" ? command() : command;
  return html`<span>
    <button type="button" class=${danger ? "danger" : undefined} onClick=${open} disabled=${disabled}>${title}</button>
    <dialog ref=${dialog} aria-label=${title}>
      <p>${question}</p>
      ${children}
      <p class="cmd"><code>${shown}</code></p>
      <${Problem} text=${problem} />
      <div class="bar">
        <button type="button" class=${danger ? "danger" : undefined} onClick=${act} disabled=${busy}>${title}</button>
        <button type="button" onClick=${() => dialog.current.close()}>Leave it</button>
      </div>
    </dialog>
  </span>`;
}

export const quoted = (text) => (/^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

const JOB_COLOURS = 8;

// A colour for a job, always the same one; lanes and lists also name the job.
export function jobColour(id) {
  let hash = 7;
  for (const c of id) hash = (hash * 31 + c.charCodeAt(0)) >>> 0;
  return getComputedStyle(document.documentElement).getPropertyValue(`--job-${hash % JOB_COLOURS}`).trim();
}

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// The width of an element, and another drawing when it changes or the theme does.
export function useWidth(ref) {
  const [width, set] = useState(0);
  useEffect(() => {
    const watcher = new ResizeObserver(([entry]) => set(Math.floor(entry.contentRect.width)));
    watcher.observe(ref.current);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    const again = () => set((old) => old + 0.001);
    theme.addEventListener("change", again);
    return () => {
      watcher.disconnect();
      theme.removeEventListener("change", again);
    };
  }, []);
  return width;
}
