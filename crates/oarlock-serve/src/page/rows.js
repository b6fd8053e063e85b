// The list of all locks as it is drawn: only the rows that can be seen are there.

let summary = { held: 0, waited: 0, ending: 0, oldest: null };
function drawSummary() {
  const { held, waited, ending, oldest } = summary;
  set($("sum-held"), held.toLocaleString("en"));
  set($("sum-waited"), waited.toLocaleString("en"));
  set($("sum-ending"), ending.toLocaleString("en"));
  set($("sum-wait"), oldest ? span(now() - oldest.waitSince) : "–");
  set($("sum-name"), oldest ? plain(oldest.name) : "");
  $("box-waited").classList.toggle("warm", waited > 0);
  $("box-wait").classList.toggle("warm", Boolean(oldest));
  $("box-ending").classList.toggle("hot", ending > 0);
}

const drawn = new Map(); // position → element
let rowHeight = 0,
  headHeight = 0;
function measure() {
  rowHeight = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) * 16;
  headHeight = $("head").offsetHeight;
}

function draw() {
  if ($("list").hidden) return;
  if (!rowHeight) measure();
  drawSummary();
  const box = $("rows"),
    [top, height] = [box.scrollTop, box.clientHeight];
  $("space").style.height = `${order.length * rowHeight}px`;
  const from = Math.max(0, Math.floor(top / rowHeight) - 5);
  const to = Math.min(order.length, Math.ceil((top + height) / rowHeight) + 5);
  for (const [at, shown] of drawn) {
    if (at < from || at >= to) {
      shown.remove();
      drawn.delete(at);
    }
  }
  let active = null;
  for (let at = from; at < to; at++) {
    const row = locks.get(order[at]);
    if (!row) continue;
    let shown = drawn.get(at);
    if (!shown) {
      shown = newRow(at);
      drawn.set(at, shown);
      $("space").append(shown);
    }
    fill(shown, row, at);
    if (row.name === selected) active = shown.id;
  }
  mark(box, "aria-activedescendant", active);
}

function newRow(at) {
  const open = (event) => {
    if (!event.target.closest("a")) openName(event.currentTarget.dataset.name);
  };
  const cell = (key, ...children) => element("span", { class: key, role: "gridcell" }, ...children);
  const shown = element(
    "div",
    { class: "row", role: "row", id: `row-${at}`, onclick: open },
    cell("name", element("a", { tabindex: "-1" })),
    cell("kind", element("span", { class: "chip" })),
    cell("state"),
    cell(
      "holder",
      element("span", { class: "person" }, element("span"), element("span", { class: "command" })),
      element("small"),
    ),
    cell("held number"),
    cell("lease", newBar()),
    cell(
      "fence number",
      element("span", { class: "short", "aria-hidden": "true" }),
      element("span", { class: "full" }),
    ),
    cell("waiters number"),
    cell("wait number"),
  );
  shown.style.top = `${at * rowHeight}px`;
  return shown;
}

// How much of a lock is taken, where more than one can hold it.
function chip(row) {
  if (row.kind !== "semaphore") return row.kind ?? "";
  const taken = row.holders.reduce((sum, holder) => sum + (Number(holder.weight) || 0), 0);
  return `semaphore ${taken}/${row.capacity ?? "?"}`;
}

// The grey line below a holder: why it holds, what a leader publishes, and who else holds.
function reasons(row, held) {
  const more = row.holders.length - 1;
  return [
    plain(held.label.reason ?? ""),
    held.value ? `leads at ${plain(held.value)}` : "",
    more ? `and ${more} more` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

function fill(shown, row, at) {
  const [name, kind, state, holder, held, lease, fence, waiters, wait] = shown.children,
    holds = first(row);
  mark(name.firstChild, "href", `#/lock/${encodeURIComponent(row.name)}`);
  shown.dataset.name = row.name;
  mark(shown, "aria-rowindex", at + 2);
  mark(shown, "aria-selected", row.name === selected);
  shown.classList.toggle("selected", row.name === selected);
  shown.classList.toggle("waited", row.waiting > 0 || row.state === "waiting");
  shown.classList.toggle("ending", row.state === "ending");
  set(name.firstChild, plain(row.name));
  mark(name, "title", plain(row.name));
  set(kind.firstChild, chip(row));
  kind.firstChild.className = `chip ${row.kind ?? ""}`;
  set(state, row.state);
  state.className = `state ${row.state}`;
  set(holder.firstChild.firstChild, holds ? person(holds.label) : "–");
  set(holder.firstChild.lastChild, holds ? command(holds.label) : "");
  set(holder.lastChild, holds ? reasons(row, holds) || (holds.label.pid ? `pid ${holds.label.pid}` : "") : "");
  mark(holder, "title", holds ? `${who(holds.label)}${reasons(row, holds) ? `\n${reasons(row, holds)}` : ""}` : "");
  set(held, holds ? span(aged(row, holds.held_ms)) : "–");
  set(fence.firstChild, holds?.fence ? (holds.fence.length > 7 ? `…${holds.fence.slice(-6)}` : holds.fence) : "–");
  set(fence.lastChild, holds?.fence ?? "");
  set(waiters, row.waiting === null ? "?" : row.waiting.toLocaleString("en"));
  set(wait, row.waitSince === null ? "–" : span(now() - row.waitSince));
  bar(lease.firstChild, row, holds);
}

function select(name) {
  selected = name;
  const at = order.indexOf(name),
    box = $("rows"),
    seen = box.clientHeight - headHeight;
  if (at >= 0) {
    if (at * rowHeight < box.scrollTop) box.scrollTop = at * rowHeight;
    if ((at + 1) * rowHeight > box.scrollTop + seen) box.scrollTop = (at + 1) * rowHeight - seen;
  }
  draw();
}

function move(by) {
  const from = order.indexOf(selected),
    at = from < 0 ? by - 1 : from + by;
  if (order.length) select(order[Math.min(order.length - 1, Math.max(0, at))]);
}

const openName = (name) => {
  location.hash = `#/lock/${encodeURIComponent(name)}`;
};
