// Requests to the service. Every answer that is no success becomes an error with the service's own sentence.

export class ApiError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

const BASE = "/api/v1/";

// The secret of the session: cookies reach every port of a machine, this stays with the page's own address.
const SECRET = "geminid-session";
export const secret = () => localStorage.getItem(SECRET) ?? "";
export const keepSecret = (text) => localStorage.setItem(SECRET, text);

export async function ask(method, path, body, options = {}) {
  const headers = { "X-Geminid-Page": "1", "X-Geminid-Session": secret() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(BASE + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: options.signal,
    });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new ApiError(0, "the service does not answer; this page tries again by itself");
  }
  if (answer.ok) {
    if (options.raw) return answer;
    return answer.status === 204 || answer.headers.get("content-length") === "0" ? null : answer.json();
  }
  let sentence = `the service answered ${answer.status}`;
  try {
    sentence = (await answer.json()).errors.join("; ");
  } catch {
    // the answer came from something between the service and this page
  }
  if (answer.status === 401 && !options.quiet) dispatchEvent(new CustomEvent("geminid-logged-out"));
  throw new ApiError(answer.status, sentence);
}

export const get = (path, options) => ask("GET", path, undefined, options);
export const query = (values) =>
  new URLSearchParams(Object.entries(values).filter(([, v]) => v !== null && v !== undefined && v !== "")).toString();
