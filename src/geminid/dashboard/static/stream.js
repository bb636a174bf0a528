// The service's event stream, for a tab or for the worker that all tabs share. It is read with fetch: an EventSource
// cannot send the secret of the session in a header.

const RETRY_MS = 1500;
const SILENT_MS = 45000; // the service sends something every 15 s

// hear: { kind: "open" | "broken" | "denied" | "reset" | "change", id, data }
export function follow(secret, lastId, hear) {
  let control = null;
  let timer = 0;
  let over = false;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => control.abort(), SILENT_MS);
  };
  const event = (block) => {
    const fields = {};
    for (const line of block.split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
    }
    if (!fields.data) return;
    lastId = fields.id;
    hear(fields.event === "reset" ? { kind: "reset", id: lastId } : { kind: "change", id: lastId, data: JSON.parse(fields.data) });
  };
  const read = async () => {
    control = new AbortController();
    let kind = "broken";
    try {
      wait();
      const answer = await fetch(`/api/v1/stream?after=${encodeURIComponent(lastId ?? "")}`, {
        headers: { "X-Geminid-Session": secret },
        cache: "no-store",
        signal: control.signal,
      });
      if (answer.status === 401) kind = "denied";
      if (!answer.ok) throw new Error(kind);
      hear({ kind: "open" });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        wait();
        const blocks = (text + value).split("\n\n");
        text = blocks.pop();
        blocks.forEach(event);
      }
    } catch {
      // the service is away, or the connection broke
    }
    clearTimeout(timer);
    if (over) return;
    hear({ kind });
    if (kind !== "denied") timer = setTimeout(read, RETRY_MS);
  };
  read();
  return () => {
    over = true;
    clearTimeout(timer);
    control.abort();
  };
}
