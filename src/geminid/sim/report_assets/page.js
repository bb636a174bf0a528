// Controls, and the first drawing.

function setPolicy(policy) {
  state.policy = policy;
  byId("policy").value = String(policy);
  for (const row of document.querySelectorAll("#policies tbody tr")) {
    const chosen = Number(row.dataset.policy) === policy;
    row.classList.toggle("chosen", chosen);
    row.querySelector(".choose").setAttribute("aria-current", chosen ? "true" : "false");
  }
  const merged = data.timeline(policy).mergedBelow;
  const note = byId("timeline-note");
  note.hidden = merged === null;
  if (merged !== null)
    note.textContent =
      merged === "any"
        ? "To keep this page small, changes of the batch size alone are not shown under this policy."
        : `To keep this page small, changes of the batch size alone by less than a factor of ${merged} are merged under this policy.`;
  arrange({ keepRows: true });
  soon(drawTimeline);
  soon(drawRacks);
  soon(drawCdf);
  if (state.job !== null) showDetail(false);
}

function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, label]) => el("option", { value }, label)));
}

function sortTable() {
  const headings = [...document.querySelectorAll("#policies thead th")];
  const body = document.querySelector("#policies tbody");
  headings.forEach((heading, k) => {
    heading.querySelector("button").addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const value = (row) => row.children[k].dataset.value;
      const compare = (a, b) => {
        if (value(a) === undefined || value(b) === undefined)
          return (value(a) === undefined) - (value(b) === undefined);
        const order = k ? value(a) - value(b) : value(a).localeCompare(value(b), "en");
        return ascending ? order : -order;
      };
      body.append(...[...body.children].sort(compare));
    });
  });
  for (const button of document.querySelectorAll("#policies .choose")) {
    const policy = Number(button.dataset.policy);
    button.querySelector(".swatch").style.backgroundColor = policyColour(policy);
    button.addEventListener("click", () => {
      setPolicy(policy);
      byId("jobs-part").scrollIntoView();
    });
  }
}

function policyLegend() {
  byId("policy-legend").replaceChildren(
    ...data.policies.map((policy, i) => {
      const line = svg(
        "svg",
        { width: 24, height: 10, "aria-hidden": "true" },
        svg("line", {
          x1: 0,
          x2: 24,
          y1: 5,
          y2: 5,
          "stroke-width": 2.4,
          "stroke-dasharray": policyDash(i),
          style: { stroke: policyColour(i) },
        }),
      );
      const button = el("button", { type: "button", "aria-pressed": "true", title: "Show or hide" }, line, policy.name);
      button.addEventListener("click", () => {
        if (!state.hidden.delete(i)) state.hidden.add(i);
        button.setAttribute("aria-pressed", String(!state.hidden.has(i)));
        drawCdf();
        drawBoxes();
      });
      return button;
    }),
  );
}

// Two radio buttons that look like one switch; arrows move between them.
function spentChoice() {
  const buttons = ["Time per job", "Share"].map((label, k) =>
    el("button", { type: "button", role: "radio", "aria-checked": String(k === 0), tabindex: k === 0 ? 0 : -1 }, label),
  );
  const check = (k, focus) => {
    spentAsShare = k === 1;
    buttons.forEach((button, i) => {
      button.setAttribute("aria-checked", String(i === k));
      button.tabIndex = i === k ? 0 : -1;
    });
    if (focus) buttons[k].focus();
    drawSpent();
  };
  buttons.forEach((button, k) => {
    button.addEventListener("click", () => check(k, false));
    button.addEventListener("keydown", (event) => {
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      check(1 - k, true);
    });
  });
  byId("spent-unit").replaceChildren(...buttons);
}

function controls() {
  options(
    byId("policy"),
    data.policies.map((p, i) => [i, p.name]),
  );
  options(byId("sort"), SORTS);
  options(byId("colour"), COLOURS);
  const named = data.applications.map((name, i) => [i, name]).sort((a, b) => a[1].localeCompare(b[1], "en"));
  options(byId("application"), [[-1, "All"], ...named]);
  byId("policy").addEventListener("change", (event) => setPolicy(Number(event.target.value)));
  const rearranged = (act) => (event) => {
    act(event.target.value);
    arrange();
    soon(drawTimeline);
  };
  byId("sort").addEventListener(
    "change",
    rearranged((value) => (view.sort = value)),
  );
  byId("application").addEventListener(
    "change",
    rearranged((value) => (view.application = Number(value))),
  );
  byId("filter").addEventListener(
    "input",
    rearranged((value) => (view.filter = value)),
  );
  byId("filter").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && view.order.length) choose(view.order[0]);
  });
  byId("colour").addEventListener("change", (event) => {
    view.colour = event.target.value;
    soon(drawTimeline);
  });
  byId("detail").addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeDetail();
  });
  for (const button of document.querySelectorAll("[data-reset-time]"))
    button.addEventListener("click", () => showAllTime());
}

function begin() {
  sortTable();
  policyLegend();
  spentChoice();
  fillSpentTable();
  byId("spent-legend").replaceChildren(...partsLegend());
  makeUsePanels();
  showRacks();
  controls();
  listenToTimeline();
  if (data.policies.length) setPolicy(state.policy);
  drawAll();
  drawTimes();

  let width = document.documentElement.clientWidth;
  new ResizeObserver(() => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    soon(drawAll);
  }).observe(document.documentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => soon(drawAll));
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    drawAll();
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    drawAll();
  });
}

begin();
