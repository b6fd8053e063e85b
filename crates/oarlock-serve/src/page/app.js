// The dashboard. It uses the HTTP API and nothing else. All text of the store is put in as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const locks = new Map(); // name → row of the server, with its sort keys
const leases = new Map(); // claim → the length of its lease, as far as it is known
let order = []; // the names that are shown, in order
let selected = null;
let clockOffset = 0; // the server's clock minus ours
let rights = {};
let store = null;

// ---- small parts

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Writes a text only where it differs: a selection stays, and a screen reader is not told again.
function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function mark(node, key, value) {
  if (value === null) node.removeAttribute(key);
  else if (node.getAttribute(key) !== String(value)) node.setAttribute(key, value);
}

// Characters that are invisible, or that change the direction of text, are shown and not obeyed.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\u115f\u1160\u2800\u3164\uffa0\u{e0100}-\u{e01ef}]/u;
function plain(text) {
  return String(text).replace(new RegExp(`\\\\|${HIDDEN.source}`, "gu"), (c) =>
    c === "\\" ? "\\\\" : `\\u{${c.codePointAt(0).toString(16)}}`,
  );
}

// Today's times without the date.
function when(ms) {
  const time = new Date(ms),
    today = time.toDateString() === new Date().toDateString();
  const clock = { hour12: false };
  return today ? time.toLocaleTimeString([], clock) : time.toLocaleString([], clock);
}

function span(ms) {
  const s = Math.floor(Math.max(0, ms) / 1000);
  if (s < 1) return `${Math.max(0, Math.round(ms))} ms`;
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const person = (label) => `${label.user ? `${plain(label.user)}@` : ""}${label.host ? plain(label.host) : "unnamed"}`;
const command = (label) => plain(label.tags?.command ?? "");
const details = (label) => [label.pid ? `pid ${label.pid}` : "", command(label)].filter(Boolean).join(" · ");
const who = (label) => person(label) + (details(label) ? ` (${details(label)})` : "");

// A word for a POSIX shell; with characters that cannot be seen, one for bash, zsh or ksh.
function shellWord(text) {
  if (HIDDEN.test(text)) {
    const escaped = text.replace(/[\\']/g, "\\$&").replace(new RegExp(HIDDEN.source, "gu"), (c) => {
      const code = c.codePointAt(0),
        hex = code.toString(16);
      return code < 0x80 ? `\\x${hex.padStart(2, "0")}` : `\\U${hex.padStart(8, "0")}`;
    });
    return `$'${escaped}'`;
  }
  return /^[\p{L}\p{N}/._:@%+=,-]+$/u.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

const pathOf = (name) =>
  `/v1/locks/${encodeURIComponent(name).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`)}`;
const now = () => Date.now() + clockOffset;
const aged = (row, ms) => ms + (now() - row.at_ms);
const left = (row, holder) => holder.lease_left_ms - (now() - row.at_ms);
const first = (row) => row.holders[0];

// ---- the server

const token = () => sessionStorage.getItem("oarlock-token");

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (token()) headers.authorization = `Bearer ${token()}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) {
    await askToken(Boolean(token()));
    return call(path, options);
  }
  return answer;
}

let asking = null;
function askToken(wrong) {
  asking ??= new Promise((done) => {
    sessionStorage.removeItem("oarlock-token");
    $("token-wrong").hidden = !wrong;
    $("token-input").value = "";
    $("token").showModal();
    $("token").addEventListener(
      "close",
      () => {
        sessionStorage.setItem("oarlock-token", $("token-input").value.trim());
        $("token-input").value = "";
        asking = null;
        done();
      },
      { once: true },
    );
  });
  return asking;
}

// Reads a stream of events until it ends; `fetch` and not EventSource, which cannot send a token.
async function stream(path, signal, handle) {
  const answer = await call(path, { signal, headers: { accept: "text/event-stream" } });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail ?? `status ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    let from = Math.max(0, rest.length - 1),
      end;
    rest += value;
    while ((end = rest.indexOf("\n\n", from)) >= 0) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      from = 0;
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      if (field("event") && !signal.aborted) handle(field("event"), JSON.parse(field("data") ?? "null"));
    }
  }
}

function say(state, text = state) {
  mark($("status"), "data-state", state);
  set($("status"), text);
}

// Follows a stream for as long as it is wanted, and opens it again when it ends: not all pages at one moment.
async function follow(path, signal, handle) {
  let pause = 250;
  while (!signal.aborted) {
    try {
      await stream(path, signal, (event, data) => {
        pause = 250;
        say("live");
        handle(event, data);
      });
      if (!signal.aborted) say("lost", "reconnecting …");
    } catch (error) {
      if (signal.aborted) return;
      say("lost", `disconnected: ${plain(error.message)}`);
    }
    await new Promise((done) => setTimeout(done, pause * (0.5 + Math.random())));
    pause = Math.min(pause * 2, 5000);
  }
}

// The one stream of the view that is open. A browser opens six connections to a server, for all of its tabs: a tab that
// cannot be seen has none.
const HIDDEN_AFTER = 2000;
let listening = null; // its AbortController
let view = null; // what opens it
let hiding = null;

function listen() {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => {
      listening?.abort();
      listening = null;
      say("paused");
    }, HIDDEN_AFTER);
  } else if (!listening && view) {
    listening = new AbortController();
    view(listening.signal);
  }
}

function show(next) {
  listening?.abort();
  [listening, view] = [null, next];
  listen();
}

function trouble(detail, listing) {
  $("trouble").hidden = !detail;
  const what = listing === "unsupported" ? "The locks of this store cannot be listed" : "The store could not be read";
  set($("trouble"), detail ? `${what}: ${plain(detail)}` : "");
}

function followLocks(signal) {
  follow("/v1/watch", signal, (event, data) => {
    if (event === "trouble") trouble(data.detail, data.listing);
    else if (event === "store") showStore().catch(() => {});
    else {
      if (event === "locks") {
        locks.clear();
        leases.clear();
        trouble(null);
        showStore().catch(() => {});
      }
      clockOffset = data.now_ms - Date.now();
      for (const row of data.locks) {
        forget(locks.get(row.name), row);
        locks.set(row.name, prepared(row));
      }
      for (const name of data.gone) {
        forget(locks.get(name));
        locks.delete(name);
      }
      if (event === "locks" || data.locks.length || data.gone.length) {
        arrange();
        drawGraph();
      }
    }
  });
}

// The store tells how much is left of a lease, and not how long it is. That is what is left right after a renewal, or
// the usual length that is a little longer, as a renewal is seen late. Until one is seen, it is the next usual length.
const USUAL = [1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 900, 1800, 3600, 7200, 86400].map(
  (s) => s * 1000,
);
function noteLease(row, holder) {
  const rest = holder.lease_left_ms,
    known = leases.get(holder.claim),
    end = row.at_ms + rest;
  if (holder.ttl_ms) leases.set(holder.claim, { full: holder.ttl_ms, end });
  else if (!known) leases.set(holder.claim, { full: USUAL.find((ms) => ms >= rest) ?? rest, end });
  else if (end > known.end + 1000) {
    const usual = USUAL.find((ms) => ms >= rest) ?? rest;
    const full = usual - rest < usual / 8 ? usual : Math.ceil(rest / 1000) * 1000;
    leases.set(holder.claim, { full: known.renewed ? Math.max(known.full, full) : full, end, renewed: true });
  }
}

function forget(row, next) {
  for (const holder of row?.holders ?? []) {
    if (!next?.holders.some((other) => other.claim === holder.claim)) leases.delete(holder.claim);
  }
}

async function showStore() {
  const answer = await call("/v1/store");
  if (!answer.ok) return;
  store = await answer.json();
  rights = store.rights;
  set($("store"), plain(store.address));
  $("store").title = plain(store.address);
  const findings = store.findings?.list ?? [],
    error = store.findings?.error;
  const isVoid = findings.some((finding) => finding.severity === "void");
  const words = findings.length ? `, ${findings.length} finding${findings.length > 1 ? "s" : ""}` : "";
  $("badge").hidden = false;
  set($("badge"), `${store.badge}${words}`);
  $("badge").className = `badge${isVoid ? " void" : !store.correct || findings.some((finding) => finding.severity !== "note") ? " unsafe" : ""}`;
  const link = (href, text) => element("a", { href, rel: "noreferrer", target: "_blank" }, text);
  const rows = findings.map((finding) =>
    element(
      "div",
      { class: `finding ${finding.severity}` },
      element(
        "h2",
        {},
        `${finding.severity.toUpperCase()} ${plain(finding.id)}`,
        finding.server ? ` on ${plain(finding.server)}` : "",
      ),
      element("p", {}, plain(finding.reason)),
      element(
        "p",
        {},
        `Fix: ${plain(finding.fix)}. `,
        finding.runbook ? link(finding.runbook, "Runbook") : null,
        finding.runbook && finding.guarantee ? " · " : null,
        finding.guarantee ? link(finding.guarantee, "The guarantee at stake") : null,
      ),
    ),
  );
  const none = error
    ? `The doctor could not examine the store: ${plain(error)}`
    : store.findings
      ? "The doctor found nothing."
      : "The doctor is still asking.";
  const capabilities = Object.entries(store.capabilities).map(([key, value]) =>
    element("div", {}, element("dt", {}, plain(key)), element("dd", {}, plain(value))),
  );
  $("findings").replaceChildren(
    ...(rows.length ? rows : [element("p", {}, none)]),
    element("h2", {}, "What the store can do"),
    element("dl", { class: "facts" }, ...capabilities),
  );
}

// ---- the list

function matcher(filter) {
  const text = filter.trim();
  if (!text) return () => true;
  if (/[*?]/.test(text)) {
    const source = text
      .replace(/[.+^${}()|[\]\\]/g, "\\$&")
      .replaceAll("*", "[^]*")
      .replaceAll("?", "[^]");
    const pattern = new RegExp(`^${source}$`, "u");
    return (row) => pattern.test(row.name);
  }
  const low = text.toLowerCase();
  return (row) => row.text.includes(low);
}

const STATES = ["ending", "waiting", "held", "free"];
// What a column is sorted by: `null` comes last, in both directions. `down`: the larger one first.
const COLUMNS = [
  { key: "name", title: "Name", down: false },
  { key: "kind", title: "Kind", down: false },
  { key: "state", title: "State", down: false },
  { key: "holder", title: "Holder", down: false },
  { key: "held", title: "Held for", down: true, class: "number" },
  { key: "lease", title: "Lease left", down: false },
  { key: "fence", title: "Fence", down: true, class: "number" },
  { key: "waiters", title: "Waiters", down: true, class: "number" },
  { key: "wait", title: "Oldest wait", down: true, class: "number" },
];
const sort = { key: "wait", down: true };

// A row with its sort keys, made once when it arrives: times are moments, so that they stay the same as it ages.
function prepared(row) {
  const held = first(row);
  let oldest = -1;
  for (const waiter of row.waiters ?? []) oldest = Math.max(oldest, waiter.waited_ms);
  for (const holder of row.holders) noteLease(row, holder);
  row.waitSince = oldest < 0 ? null : row.at_ms - oldest;
  row.text = [
    row.name,
    ...row.holders.slice(0, 20).map((holder) => `${who(holder.label)} ${holder.label.reason ?? ""}`),
  ]
    .join("\n")
    .toLowerCase();
  row.by = {
    name: row.name,
    kind: row.kind ?? null,
    state: STATES.indexOf(row.state),
    holder: held ? who(held.label) : null,
    held: held ? held.held_ms - row.at_ms : null,
    lease: held ? row.at_ms + held.lease_left_ms : null,
    fence: held?.fence ? Number(held.fence) : null,
    waiters: row.waiting,
    wait: oldest < 0 ? null : -row.waitSince,
  };
  return row;
}

function arrange() {
  const wanted = matcher($("filter").value),
    rows = [],
    { key, down } = sort;
  let [held, waited, ending, oldest] = [0, 0, 0, null];
  for (const row of locks.values()) {
    if (wanted(row)) rows.push(row);
    if (row.holders.length) held += 1;
    if (row.waiting > 0) waited += 1;
    if (row.state === "ending") ending += 1;
    if (row.waitSince !== null && row.waitSince < (oldest?.waitSince ?? Infinity)) oldest = row;
  }
  rows.sort((a, b) => {
    const x = a.by[key],
      y = b.by[key];
    if (x === y) return a.name < b.name ? -1 : 1;
    if (x === null || y === null) return x === null ? 1 : -1;
    return x < y === down ? 1 : -1;
  });
  order = rows.map((row) => row.name);
  if (selected !== null && !locks.has(selected)) selected = null;
  summary = { held, waited, ending, oldest };
  set(
    $("count"),
    order.length === locks.size
      ? `${locks.size.toLocaleString("en")} locks`
      : `${order.length.toLocaleString("en")} of ${locks.size.toLocaleString("en")} locks`,
  );
  $("empty").hidden = order.length > 0;
  set($("empty"), locks.size ? "No lock matches the filter." : "No lock is held or waited for.");
  mark($("rows"), "aria-rowcount", order.length + 1);
  for (const head of $("head").children)
    mark(head, "aria-sort", head.dataset.key === key ? (down ? "descending" : "ascending") : null);
  $("sort").value = key;
  draw();
}

function sortBy(key) {
  sort.down = key === sort.key ? !sort.down : COLUMNS.find((column) => column.key === key).down;
  sort.key = key;
  arrange();
}

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

// Only the rows that can be seen are there.
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

const newBar = () => element("span", { class: "bar" }, element("i"), element("b"));
function bar(box, row, holder) {
  box.hidden = !holder;
  if (!holder) return;
  const rest = Math.max(0, left(row, holder)),
    full = Math.max(leases.get(holder.claim)?.full ?? rest, 1);
  box.firstChild.style.width = `${Math.min(100, (100 * rest) / full).toFixed(1)}%`;
  box.classList.toggle("low", rest < full / 3);
  set(box.lastChild, span(rest));
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

// ---- tables that are patched

// Rows are known by their key. Cells are written only where they differ, so that what is selected or focused stays; a
// column without text is hidden. A column has `text` or `fill`.
function patchedTable(label, columns) {
  const titles = columns.map((column) => element("th", { scope: "col", class: column.class }, column.title));
  const body = element("tbody"),
    shown = new Map();
  const node = element("table", { "aria-label": label }, element("thead", {}, element("tr", {}, ...titles)), body);
  const update = (rows, keyOf) => {
    const keys = new Set(rows.map(keyOf));
    for (const [key, line] of shown)
      if (!keys.has(key)) {
        line.remove();
        shown.delete(key);
      }
    rows.forEach((row, at) => {
      const key = keyOf(row, at);
      if (!shown.has(key))
        shown.set(
          key,
          element(
            "tr",
            {},
            ...columns.map((column) => element("td", { class: column.class, "data-title": column.title })),
          ),
        );
      const line = shown.get(key);
      if (body.children[at] !== line) body.insertBefore(line, body.children[at] ?? null);
      columns.forEach((column, index) => {
        if (column.fill) column.fill(line.cells[index], row, at);
        else set(line.cells[index], String(column.text(row, at) ?? ""));
      });
    });
    const lines = [...shown.values()];
    columns.forEach((_, index) => {
      const empty = lines.every((line) => line.cells[index].textContent === "");
      for (const cell of [titles[index], ...lines.map((line) => line.cells[index])]) cell.hidden = empty;
    });
    node.hidden = rows.length === 0;
  };
  return { node, update };
}

// Changes the children only if the text of what they are made from has changed.
function renew(box, text, make) {
  if (box.dataset.made === text) return;
  box.dataset.made = text;
  box.replaceChildren(...make());
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Not a secure context: the text is selected, for the keys of the browser.
    getSelection().selectAllChildren(button.previousElementSibling);
    set(button, "Press Ctrl+C");
    return;
  }
  set(button, "Copied");
  setTimeout(() => set(button, "Copy"), 1500);
}

// ---- one lock

const SHOWN_WAITERS = 200;
const labelColumns = [
  { title: "Who", text: ({ label }) => person(label) },
  { title: "Pid", class: "number", text: ({ label }) => label.pid || "" },
  { title: "Command", class: "mono", text: ({ label }) => command(label) },
  { title: "Reason", text: ({ label }) => plain(label.reason ?? "") },
  {
    title: "Tags",
    text: ({ label }) =>
      Object.entries(label.tags ?? {})
        .filter(([key]) => key !== "command")
        .map(([key, value]) => `${plain(key)}=${plain(value)}`)
        .join(", "),
  },
];
const amount = (claim) => (claim.kind === "semaphore" ? `${claim.weight} permit${claim.weight === 1 ? "" : "s"}` : "");

function openLock(name) {
  const path = pathOf(name),
    box = $("lock");
  let row = null,
    history = null,
    reading = null,
    soon = null,
    ticks = 0;
  const part = (title, ...children) => element("section", { class: "card" }, element("h3", {}, title), ...children);

  const facts = element("dl", { class: "facts" }),
    state = element("span"),
    kind = element("span", { class: "chip" });
  const holders = patchedTable("Holders", [
    ...labelColumns,
    { title: "Kind", text: (holder) => (row.kind === holder.kind ? "" : holder.kind) },
    { title: "Takes", text: amount },
    { title: "Value", text: (holder) => plain(holder.value ?? "") },
    { title: "Held for", class: "number", text: (holder) => span(aged(row, holder.held_ms)) },
    {
      title: "Lease left",
      class: "lease",
      fill: (cell, holder) => {
        if (!cell.firstChild) cell.append(newBar());
        bar(cell.firstChild, row, holder);
      },
    },
    { title: "Fence", class: "mono", text: (holder) => holder.fence ?? "" },
    {
      title: "Asked to end",
      class: "lost",
      text: ({ ending }) => (ending ? `by ${plain(ending.by)}: ${plain(ending.why)}` : ""),
    },
    {
      title: "Action",
      fill: (cell, holder) => {
        const may = rights.break && holder.fence;
        if (!may) cell.replaceChildren();
        else if (!cell.firstChild) cell.append(element("button", { type: "button", class: "danger" }, "Break …"));
        if (may) cell.firstChild.onclick = () => askBreak(name, holder, row);
      },
    },
  ]);
  const queue = patchedTable("Queue", [
    { title: "Place", class: "number place", text: (_, at) => at + 1 },
    ...labelColumns,
    { title: "Kind", text: (waiter) => (row.kind === waiter.kind ? "" : waiter.kind) },
    { title: "Wants", text: amount },
    { title: "Waits for", class: "number", text: (waiter) => span(aged(row, waiter.waited_ms)) },
    { title: "Behind it", text: ({ behind }) => (behind ? `${behind} more in its process` : "") },
  ]);
  const past = patchedTable("Last holders", [
    { title: "Holder", text: (hold) => plain(hold.holder) },
    { title: "Reason", text: (hold) => plain(hold.reason ?? "") },
    { title: "Fence", class: "mono", text: (hold) => hold.fence ?? "" },
    { title: "Since", text: (hold) => when(hold.since_ms) },
    {
      title: "Held for",
      class: "number",
      text: (hold) => (hold.until_ms ? span(hold.until_ms - hold.since_ms) : "still held"),
    },
  ]);
  const spans = patchedTable("Percentiles", [
    { title: "", text: ([word]) => word },
    { title: "Count", class: "number", text: ([, spans]) => spans.count },
    ...["p50", "p90", "p99", "max"].map((key) => ({
      title: key === "max" ? "Longest" : key,
      class: "number",
      text: ([, spans]) => span(spans[key]),
    })),
  ]);
  const breaks = patchedTable("Breaks", [
    { title: "When", text: (entry) => when(entry.at_ms) },
    { title: "Fence", class: "mono", text: (entry) => entry.fence },
    { title: "By", text: (entry) => plain(entry.by) },
    { title: "Why", text: (entry) => plain(entry.why) },
    { title: "Outcome", text: (entry) => plain(entry.outcome ?? "") },
  ]);
  const chart = element("div", { class: "drawing" }),
    commands = element("div", { class: "commands" });
  const [none, more, unseen, failed] = [
    element("p", { class: "soft" }),
    element("p", { class: "soft" }),
    element("p", { class: "soft" }, "None was seen yet."),
    element("p", { class: "trouble", hidden: true }),
  ];
  const queuePart = part("Queue, in order", queue.node, more),
    breakPart = part("Breaks", breaks.node);
  const body = element(
    "div",
    { hidden: true },
    facts,
    part("Holders", none, holders.node),
    queuePart,
    part(
      "Last holders",
      unseen,
      chart,
      past.node,
      spans.node,
      element("p", { class: "soft" }, "Sampled: a hold that began and ended between two samples is not here."),
    ),
    breakPart,
    part("From a shell", commands),
  );
  box.replaceChildren(
    element("p", { class: "crumbs" }, element("a", { href: "#/" }, "← all locks")),
    element("div", { class: "title" }, element("h2", { class: "name" }, plain(name)), kind, state),
    failed,
    body,
  );

  const write = () => {
    if (!row) return;
    body.hidden = false;
    set(state, row.state);
    state.className = `state ${row.state}`;
    set(kind, chip(row));
    kind.hidden = !row.kind;
    const known = [
      ["Capacity", row.capacity],
      ["Waiting", row.waiting ?? "unknown"],
      ["Last fence", row.last_fence],
    ].filter(([, value]) => value !== null);
    renew(facts, JSON.stringify(known), () =>
      known.map(([key, value]) => element("div", {}, element("dt", {}, key), element("dd", {}, String(value)))),
    );
    holders.update(row.holders, (holder) => holder.claim);
    const waiters = (row.waiters ?? []).slice(0, SHOWN_WAITERS);
    queue.update(waiters, (waiter) => waiter.claim);
    set(none, row.holders.length ? "" : "Free.");
    none.hidden = row.holders.length > 0;
    const beyond = (row.waiting ?? 0) - waiters.length;
    set(
      more,
      row.waiting === null
        ? "This store does not tell who waits."
        : beyond > 0
          ? `and ${beyond.toLocaleString("en")} more`
          : waiters.length
            ? ""
            : "No waiters.",
    );
    more.hidden = !more.textContent;
    const lines = commandsFor(name, row);
    renew(commands, lines.join("\n"), () =>
      lines.map((text) =>
        element(
          "div",
          { class: "command" },
          element("code", { tabindex: "0" }, text),
          element(
            "button",
            { type: "button", "aria-label": `Copy: ${text}`, onclick: (event) => copy(text, event.currentTarget) },
            "Copy",
          ),
        ),
      ),
    );
  };
  const writeHistory = () => {
    if (!history || box.hidden) return;
    unseen.hidden = history.holds.length > 0;
    const width = chart.clientWidth || box.clientWidth - 40;
    chart.replaceChildren(...(history.holds.length ? [timeline(history.holds, width)] : []));
    past.update(history.holds.slice(0, 20), (hold) => `${hold.since_ms} ${hold.fence} ${hold.holder}`);
    spans.update(
      [
        ["held", history.held_ms],
        ["waited", history.waited_ms],
      ].filter(([, spans]) => spans?.count),
      ([word]) => word,
    );
    breaks.update(history.breaks, (entry, at) => `${entry.at_ms} ${at}`);
    breakPart.hidden = !history.breaks.length;
  };
  breakPart.hidden = true;

  const take = (data) => {
    if (data.at_ms < row?.at_ms) return;
    for (const holder of data.holders) noteLease(data, holder);
    row = data;
    clockOffset = data.at_ms - Date.now();
    write();
  };
  // The stream does not tell of renewals.
  const refresh = async () => {
    const answer = await call(path).catch(() => null);
    if (answer?.ok) take(await answer.json());
  };
  const tick = () => {
    write();
    ticks += 1;
    if (ticks % 3 === 0) refresh();
    if (ticks % 5 === 0) read();
  };
  const read = () => {
    reading ??= call(`${path}/history`)
      .then(async (answer) => {
        if (answer.ok) {
          history = await answer.json();
          writeHistory();
        }
      })
      .catch(() => {})
      .finally(() => {
        reading = null;
      });
  };
  // Soon after a change: a sample must have seen it, and changes may come in a burst.
  const readSoon = () => {
    soon ??= setTimeout(() => {
      soon = null;
      read();
    }, 700);
  };
  return (signal) => {
    const timer = setInterval(tick, 1000);
    addEventListener("resize", writeHistory, { signal });
    signal.addEventListener("abort", () => {
      clearInterval(timer);
      clearTimeout(soon);
      soon = null;
    });
    leases.clear();
    read();
    follow(`${path}/watch`, signal, (event, data) => {
      if (event === "lock") {
        take(data);
        readSoon();
      }
      failed.hidden = event !== "trouble";
      if (event === "trouble") set(failed, `The store could not be read: ${plain(data.detail)}`);
    });
  };
}

function commandsFor(name, row) {
  const word = shellWord(name),
    url = store ? ` -u ${shellWord(store.address)}` : "";
  // A name that begins with "-" must not be read as an option.
  const line = (verb, options = "") =>
    name.startsWith("-") ? `oarlock ${verb}${options}${url} -- ${word}` : `oarlock ${verb}${options} ${word}${url}`;
  const fenced = row.holders.find((holder) => holder.fence);
  return [
    line("show"),
    line("watch"),
    line("wait", " --free"),
    ...(fenced ? [line("break", ` --fence ${fenced.fence}`)] : []),
    `curl -s ${token() ? '-H "Authorization: Bearer $TOKEN" ' : ""}${shellWord(location.origin + pathOf(name))}`,
  ];
}

const SVG = "http://www.w3.org/2000/svg";
function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// As much of a text as fits, in letters of this width.
const cut = (text, width, letter = 7) =>
  text.length * letter <= width ? text : `${text.slice(0, Math.max(1, Math.floor(width / letter) - 1))}…`;

const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800].map((s) => s * 1000);

// The last holders as bars over time, one line for each holder, drawn as wide as the page is.
function timeline(holds, width) {
  const end = now(),
    shown = holds.slice(0, 60);
  const start = Math.min(end - 1000, ...shown.map((hold) => hold.since_ms));
  const names = [...new Set(shown.map((hold) => hold.holder))].slice(0, 12),
    line = 26,
    height = names.length * line;
  const label = Math.min(220, Math.round(width * 0.34)),
    at = (ms) => label + (Math.max(0, ms - start) / (end - start)) * (width - label - 8);
  const chart = svg("svg", {
    class: "chart",
    viewBox: `0 0 ${width} ${height + 26}`,
    width,
    height: height + 26,
    role: "img",
    "aria-label": "Timeline of the last holders; the table below has the same data",
  });
  const step = STEPS.find((step) => (end - start) / step <= (width - label) / 76) ?? STEPS.at(-1);
  const zone = new Date().getTimezoneOffset() * 60000;
  const format =
    step >= 86400000
      ? { month: "short", day: "numeric" }
      : { hour: "2-digit", minute: "2-digit", second: step < 60000 ? "2-digit" : undefined, hour12: false };
  for (let tick = Math.ceil((start - zone) / step) * step + zone; tick < end; tick += step) {
    chart.append(svg("line", { x1: at(tick), x2: at(tick), y1: 0, y2: height + 6 }));
    if (at(tick) < width - 62)
      chart.append(
        svg(
          "text",
          { class: "tick", x: at(tick), y: height + 20, "text-anchor": at(tick) < label + 25 ? "start" : "middle" },
          new Date(tick).toLocaleString("en-GB", format),
        ),
      );
  }
  chart.append(
    svg("line", { class: "now", x1: at(end), x2: at(end), y1: 0, y2: height + 6 }),
    svg("text", { class: "tick", x: width - 2, y: height + 20, "text-anchor": "end" }, "now"),
  );
  names.forEach((name, index) => {
    const y = index * line;
    const text = svg("text", { x: 4, y: y + 17 }, cut(plain(name), label - 12));
    text.append(svg("title", {}, plain(name)));
    chart.append(text);
    for (const hold of shown.filter((hold) => hold.holder === name)) {
      const from = at(hold.since_ms),
        to = at(hold.until_ms ?? end);
      const rect = svg("rect", {
        x: from,
        y: y + 5,
        width: Math.max(2, to - from),
        height: line - 10,
        rx: 3,
        class: hold.until_ms ? "" : "open",
      });
      rect.append(
        svg(
          "title",
          {},
          [
            plain(name),
            `fence ${hold.fence ?? "–"}`,
            span((hold.until_ms ?? end) - hold.since_ms),
            plain(hold.reason ?? ""),
          ]
            .filter(Boolean)
            .join(", "),
        ),
      );
      chart.append(rect);
    }
  });
  return chart;
}

// ---- ending a hold

function askBreak(name, holder, row) {
  set(
    $("break-who"),
    `"${plain(name)}" is held by ${who(holder.label)} for ${span(aged(row, holder.held_ms))}, fence ${holder.fence}.`,
  );
  set($("break-word"), plain(name));
  for (const id of ["break-name", "break-reason"]) $(id).value = "";
  const answered = (text, failed) => {
    set($("break-answer"), plain(text));
    $("break-answer").className = failed ? "trouble" : "good";
  };
  answered("", false);
  // A name with characters that no keyboard has is typed as it is shown.
  const check = () => {
    $("break-do").disabled = ![name, plain(name)].includes($("break-name").value);
  };
  check();
  $("break-name").oninput = check;
  // Not disabled meanwhile: that would take the focus away.
  let busy = false;
  $("break-do").onclick = async () => {
    if (busy) return;
    busy = true;
    answered("asking …", false);
    const query = new URLSearchParams({
      fence: holder.fence,
      grace_ms: String(Math.round(1000 * Number($("break-grace").value || 0))),
      reason: $("break-reason").value,
    });
    try {
      const answer = await call(`${pathOf(name)}?${query}`, { method: "DELETE" });
      const body = await answer.json().catch(() => ({}));
      answered(body.detail ?? `status ${answer.status}`, !answer.ok);
    } catch (error) {
      answered(
        `No answer: ${error.message}. It is not known whether the hold was ended; it does no harm to ask again.`,
        true,
      );
    }
    busy = false;
  };
  $("break").showModal();
}

// ---- the wait-for graph

const DRAWN = 40;

// Processes as boxes, in columns: each waits for those to its right; those in one circle are in one column. On a narrow
// page they are in one column, those that wait above.
function drawing(graph, edges, inCycle, room) {
  const nodes = [...new Set(edges.flatMap((edge) => [edge.from, edge.to]))].slice(0, DRAWN),
    level = new Map(nodes.map((node) => [node, 0]));
  const drawn = edges.filter((edge) => level.has(edge.from) && level.has(edge.to));
  for (let pass = 0; pass < nodes.length; pass += 1) {
    for (const { from, to } of drawn.filter((edge) => !inCycle(edge)))
      level.set(from, Math.max(level.get(from), level.get(to) + 1));
  }
  for (const cycle of graph.cycles) {
    const most = Math.max(...cycle.map((node) => level.get(node) ?? 0));
    cycle.filter((node) => level.has(node)).forEach((node) => level.set(node, most));
  }
  const columns = Math.max(...level.values()) + 1,
    step = 310,
    line = 58,
    high = 40,
    narrow = columns * step + 60 > room;
  const wide = narrow ? Math.min(320, room - 96) : 230,
    rows = new Map(),
    at = new Map();
  if (narrow) nodes.sort((a, b) => level.get(b) - level.get(a));
  nodes.forEach((node, index) => {
    const column = level.get(node),
      row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    at.set(
      node,
      narrow ? { x: 8, y: 10 + index * line } : { x: 8 + (columns - 1 - column) * step, y: 10 + row * line },
    );
  });
  const width = narrow ? wide + 96 : columns * step + 20,
    height = (narrow ? nodes.length : Math.max(...rows.values())) * line + 8;
  const chart = svg("svg", {
    class: "chart graph",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": "Which process waits for which; the table below has the same data, and more",
  });
  const heads = svg("defs", {});
  for (const kind of ["edge", "cycle"]) {
    const head = svg("marker", {
      id: `head-${kind}`,
      viewBox: "0 0 8 8",
      refX: 8,
      refY: 4,
      markerWidth: 9,
      markerHeight: 9,
      markerUnits: "userSpaceOnUse",
      orient: "auto",
    });
    head.append(svg("path", { class: `${kind} head`, d: "M0 0 L8 4 L0 8 z" }));
    heads.append(head);
  }
  chart.append(heads);
  for (const edge of drawn) {
    const kind = inCycle(edge) ? "cycle" : "edge",
      from = at.get(edge.from),
      to = at.get(edge.to),
      same = from.x === to.x;
    const start = { x: from.x + wide, y: from.y + high / 2 - 5 },
      end = same ? { x: to.x + wide, y: to.y + high / 2 + 5 } : { x: to.x, y: to.y + high / 2 };
    const bulge = Math.min(100, 30 + Math.abs(from.y - to.y) / 4),
      out = same ? bulge : (end.x - start.x) / 2,
      back = same ? bulge : -out;
    const path = svg("path", {
      class: kind,
      d: `M${start.x} ${start.y} C${start.x + out} ${start.y} ${end.x + back} ${end.y} ${end.x} ${end.y}`,
      "marker-end": `url(#head-${kind})`,
    });
    path.append(
      svg(
        "title",
        {},
        `${plain(graph.processes[edge.from])} waits for ${plain(graph.processes[edge.to])}: ${plain(edge.name)}`,
      ),
    );
    chart.append(path);
  }
  for (const [node, { x, y }] of at) {
    const name = plain(graph.processes[node]),
      cyclic = graph.cycles.some((cycle) => cycle.includes(node));
    const box = svg("g", { class: cyclic ? "cycle" : "process" });
    box.append(
      svg("title", {}, name),
      svg("rect", { x, y, width: wide, height: high, rx: 8 }),
      svg("text", { x: x + 12, y: y + high / 2 + 5 }, cut(name, wide - 20, 7.6)),
    );
    chart.append(box);
  }
  return chart;
}

let graphed = null; // the parts of the view, and what they show
function openGraph() {
  const link = (cell, edge) => {
    if (!cell.firstChild) cell.append(element("a"));
    mark(cell.firstChild, "href", `#/lock/${encodeURIComponent(edge.name)}`);
    set(cell.firstChild, plain(edge.name));
  };
  const name = (key) => (cell, edge) => {
    set(cell, plain(edge[key]));
    cell.classList.toggle("cycle", edge.cyclic);
  };
  const table = patchedTable("Who waits for whom", [
    { title: "Waits", fill: name("waiter") },
    { title: "for", fill: name("holder") },
    { title: "on the lock", class: "mono", fill: link },
  ]);
  const [cycles, chart, more] = [
    element("div"),
    element("div", { class: "drawing" }),
    element("p", { class: "soft", hidden: true }),
  ];
  $("graph").replaceChildren(
    element("div", { class: "title" }, element("h2", {}, "Who waits for whom")),
    cycles,
    element("section", { class: "card" }, chart, table.node, more),
  );
  graphed = { table, cycles, chart, more, reading: false, wanted: false, graph: null };
  drawGraph();
}

async function drawGraph() {
  const view = graphed;
  if ($("graph").hidden || !view) return;
  view.wanted = true;
  if (view.reading) return;
  view.reading = true;
  // What changes while it is read is read again.
  while (view.wanted && graphed === view && !$("graph").hidden) {
    view.wanted = false;
    const answer = await call("/v1/graph").catch(() => null);
    const graph = answer?.ok ? await answer.json().catch(() => null) : null;
    if (graph && graphed === view) {
      view.graph = graph;
      writeGraph();
    }
  }
  view.reading = false;
}

function writeGraph() {
  const { table, cycles, chart, more, graph } = graphed ?? {};
  if (!graph || $("graph").hidden) return;
  const circle = new Map(),
    room = chart.clientWidth;
  graph.cycles.forEach((cycle, index) => cycle.forEach((process) => circle.set(process, index)));
  const inCycle = (edge) => circle.has(edge.from) && circle.get(edge.from) === circle.get(edge.to);
  const edges = [...graph.edges].sort((a, b) => inCycle(b) - inCycle(a)).slice(0, 500);
  renew(cycles, JSON.stringify([graph.cycles, graph.processes]), () =>
    graph.cycles.length
      ? graph.cycles.map((cycle) =>
          element(
            "p",
            { class: "alarm" },
            element("b", {}, "Deadlock"),
            `, unless one gives up: ${cycle.map((process) => plain(graph.processes[process])).join(" ⇄ ")}`,
            cycle.length === 1 ? " waits for itself" : "",
          ),
        )
      : [element("p", { class: "soft" }, edges.length ? "No process waits in a circle." : "No process waits.")],
  );
  renew(chart, JSON.stringify([graph.edges, graph.processes, room]), () =>
    edges.length ? [drawing(graph, edges, inCycle, room)] : [],
  );
  chart.parentNode.hidden = edges.length === 0;
  table.update(
    edges.map((edge) => ({
      name: edge.name,
      waiter: graph.processes[edge.from],
      holder: graph.processes[edge.to],
      cyclic: inCycle(edge),
    })),
    (edge) => JSON.stringify([edge.waiter, edge.holder, edge.name]),
  );
  const [all, beyond] = [graph.processes.length, graph.edges.length - edges.length + (graph.left_out?.edges ?? 0)];
  set(
    more,
    [all > DRAWN ? `Drawn: ${DRAWN} of ${all} processes.` : "", beyond > 0 ? `Not listed: ${beyond} more.` : ""]
      .join(" ")
      .trim(),
  );
  more.hidden = !more.textContent;
}

// ---- views and keys

// `null` for what is no encoded name: the list is shown then.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

let started = false;
function route() {
  const hash = location.hash,
    isGraph = hash === "#/graph",
    name = hash.startsWith("#/lock/") ? decoded(hash.slice(7)) : null;
  $("list").hidden = isGraph || name !== null;
  $("lock").hidden = name === null;
  $("graph").hidden = !isGraph;
  mark($("tab-list"), "aria-current", isGraph ? null : "page");
  mark($("tab-graph"), "aria-current", isGraph ? "page" : null);
  document.title = name === null ? "Oarlock" : `${plain(name)} – Oarlock`;
  if (name !== null) selected = name;
  show(name === null ? followLocks : openLock(name));
  if (isGraph) openGraph();
  else if (name === null) arrange();
  // After a change of view a screen reader continues in the new one.
  if (started) (isGraph || name !== null ? $("main") : $("rows")).focus();
  started = true;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    if (typing) $("rows").focus();
    else location.hash = "#/";
    return;
  }
  if (typing && !(event.target === $("filter") && ["ArrowDown", "Enter"].includes(event.key))) return;
  const page = Math.max(1, Math.floor(($("rows").clientHeight - headHeight) / rowHeight) - 1),
    listing = !$("list").hidden;
  const next = () => COLUMNS[(COLUMNS.findIndex((column) => column.key === sort.key) + 1) % COLUMNS.length].key;
  const listed = {
    ArrowDown: () => {
      $("rows").focus();
      move(1);
    },
    j: () => move(1),
    ArrowUp: () => move(-1),
    k: () => move(-1),
    PageDown: () => move(page),
    PageUp: () => move(-page),
    Home: () => move(-order.length),
    End: () => move(order.length),
    Enter: () => {
      if (order.length) openName(order.includes(selected) ? selected : order[0]);
    },
    s: () => sortBy(next()),
    S: () => sortBy(sort.key),
    "/": () => $("filter").select(),
  };
  const anywhere = {
    g: () => {
      location.hash = "#/graph";
    },
    "?": () => $("help").showModal(),
  };
  const onButton = /^(A|BUTTON)$/.test(event.target.tagName) && event.key === "Enter";
  const act = (listing && !onButton && listed[event.key]) || anywhere[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

for (const { key, title, class: kind } of COLUMNS) {
  $("head").append(
    element(
      "span",
      { role: "columnheader", class: `${key} ${kind ?? ""}`, "data-key": key },
      element("button", { type: "button", onclick: () => sortBy(key) }, title),
    ),
  );
  $("sort").append(element("option", { value: key }, title.toLowerCase()));
}
$("tools").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", arrange);
$("sort").addEventListener("change", () => sortBy($("sort").value));
$("rows").addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
$("rows").addEventListener("focus", () => {
  if (!order.includes(selected) && order.length) select(order[0]);
});
$("help-open").addEventListener("click", () => $("help").showModal());
$("badge").addEventListener("click", () => {
  $("findings").hidden = !$("findings").hidden;
  mark($("badge"), "aria-expanded", !$("findings").hidden);
});
addEventListener("resize", () => {
  for (const shown of drawn.values()) shown.remove();
  drawn.clear();
  measure();
  draw();
  writeGraph();
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", listen);
// A page that the browser keeps for its back button keeps no connection.
addEventListener("pagehide", () => {
  listening?.abort();
  listening = null;
});
addEventListener("pageshow", listen);
setInterval(() => {
  if (!document.hidden) draw();
}, 250);

route();
showStore().catch(() => {});
