// Nodes: what is on their slots, and taking nodes and slots out of service.

import { html } from "../dom.js";
import { Action, Problem, useAnswer } from "../parts.js";
import { Link } from "../router.js";
import { useStore } from "../store.js";
import { plural } from "../text.js";

const REFRESH_MS = 3000;

function health(node) {
  if (node.down) return "down";
  if (node.unfit) return node.unfit;
  if (node.leaving) return "leaving";
  if (node.drained) return "drained";
  return "in service";
}

export function Nodes() {
  const { session, status } = useStore();
  const nodes = useAnswer("nodes", REFRESH_MS);
  const admin = session?.role === "admin";
  const total = (nodes.data ?? []).reduce((sum, node) => sum + node.slots, 0);
  return html`<div>
    <h1>Nodes</h1>
    <p class="note">${plural(nodes.data?.length ?? 0, "node")}, ${plural(total, "slot")}. ${admin ? "" : "Only admins drain nodes and cordon slots."}</p>
    <${Problem} text=${nodes.problem} />
    ${(nodes.data ?? []).map(
      (node) => html`<section class="panel" key=${node.name} aria-label=${`Node ${node.name}`}>
        <div class="bar">
          <strong>${node.name}</strong>
          <span>${plural(node.slots, "slot")} of ${node.gpu_type}</span>
          ${node.rack && html`<span class="note">${[node.rack, node.zone].filter(Boolean).join(", ")}</span>`}
          <span>${health(node)}</span>
          <span class="note">agent ${node.agent_version || "not connected yet"}</span>
          <span class="push"></span>
          ${admin &&
          (node.drained
            ? html`<${Action} title="Undrain" question=${`Let ${node.name} take work again?`} command=${`geminid drain ${node.name} --undo`} path=${`nodes/${node.name}/undrain`} done=${nodes.again} />`
            : html`<${Action} title="Drain" danger question=${drainQuestion(node)} command=${`geminid drain ${node.name} --yes`} path=${`nodes/${node.name}/drain?yes=true`} done=${nodes.again} />`)}
        </div>
        <div class="table" tabindex="0" role="region" aria-label=${`Slots of ${node.name}`}><table>
          <thead><tr><th scope="col">slot</th><th scope="col">job</th><th scope="col">planned</th><th scope="col">state</th><th scope="col"></th></tr></thead>
          <tbody>${node.jobs.map((job, slot) => {
            const cordoned = node.cordoned.includes(slot);
            const name = `${node.name}/${slot}`;
            return html`<tr>
              <td>${name}</td>
              <td>${job ? html`<${Link} to=${`/jobs/${job}`}>${job}<//>` : "free"}</td>
              <td>${node.planned[slot] && node.planned[slot] !== job ? node.planned[slot] : ""}</td>
              <td>${cordoned ? "cordoned" : node.taken.includes(slot) ? "used by others" : "in service"}</td>
              <td>${admin &&
              (cordoned
                ? html`<${Action} title="Uncordon" question=${`Let slot ${name} take work again?`} command=${`geminid cordon ${name} --undo`} path=${`slots/${name}/uncordon`} done=${nodes.again} />`
                : html`<${Action} title="Cordon" question=${`Let slot ${name} take no more work? An elastic job leaves it; a plain command stays until it ends.`} command=${`geminid cordon ${name}`} path=${`slots/${name}/cordon`} done=${nodes.again} />`)}</td>
            </tr>`;
          })}</tbody>
        </table></div>
      </section>`,
    )}
    ${status.nodes_out?.length > 0 && html`<p class="note">Out of service: ${status.nodes_out.join(", ")}.</p>`}
    <p class="cmd"><code>geminid nodes</code></p>
  </div>`;
}

function drainQuestion(node) {
  const jobs = [...new Set(node.jobs.filter(Boolean))];
  const there = jobs.length ? ` On it: ${jobs.join(", ")}. Elastic jobs move; plain commands stop and begin again elsewhere.` : "";
  return `Let ${node.name} take no more work?${there}`;
}
