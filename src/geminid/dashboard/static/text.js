// Numbers and times as people write them. Times are seconds since 1970, shown in the viewer's time zone.

export const count = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en-US"));
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const percent = (share, digits = 0) =>
  share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`;

export function number(n, digits = 4) {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  const size = Math.abs(n);
  if (size >= 1e6) return `${+(n / 1e6).toPrecision(digits)}M`;
  if (size >= 1e4) return count(Math.round(n));
  return size !== 0 && size < 1e-3 ? n.toExponential(2) : count(+n.toPrecision(digits));
}

export function duration(s) {
  if (s === null || s === undefined || !Number.isFinite(s)) return "–";
  const whole = Math.max(s, 0);
  if (whole < 10) return `${whole.toFixed(1)} s`;
  if (whole < 120) return `${whole.toFixed(0)} s`;
  if (whole < 7200) return `${(whole / 60).toFixed(whole < 600 ? 1 : 0)} min`;
  if (whole < 172800) return `${(whole / 3600).toFixed(1)} h`;
  return `${(whole / 86400).toFixed(1)} days`;
}

const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

export const moment = (s) => (s === null || s === undefined ? "–" : dayFormat.format(s * 1000));
export const timeZone = zone;

const dateFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

// When a period begins: a day where that is midnight.
export const period = (s) => {
  const at = new Date(s * 1000);
  return at.getHours() || at.getMinutes() ? dayFormat.format(at) : dateFormat.format(at);
};

export function clock(s, now) {
  if (s === null || s === undefined) return "–";
  return Math.abs(s - now) < 20 * 3600 ? clockFormat.format(s * 1000) : dayFormat.format(s * 1000);
}

// An interval in the future, such as "in 2.0–3.5 min".
export function ahead(interval, now) {
  if (!interval) return "–";
  const [from, to] = interval.map((at) => Math.max(at - now, 0));
  if (to < 1) return "now";
  if (to - from < 0.1 * to) return duration(to);
  const [a, b] = [duration(from), duration(to)];
  const unit = b.slice(b.indexOf(" "));
  return a.endsWith(unit) ? `${a.slice(0, -unit.length)}–${b}` : `${a}–${b}`;
}

export const slotRange = (row) =>
  row.max_slots === row.min_slots
    ? `${row.min_slots}`
    : row.max_slots === null
      ? `${row.min_slots} or more`
      : `${row.min_slots}–${row.max_slots}`;
