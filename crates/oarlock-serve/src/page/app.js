// The dashboard. It uses the HTTP API and nothing else. All text of the store is put in as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const locks = new Map(); // name → row of the server, with the moment at which its ages were read
const fullLease = new Map(); // claim → the longest lease that was seen of it
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

// Control characters and those that change the direction of text are shown, not obeyed.
function plain(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu,
    (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

function span(ms) {
  const s = Math.floor(Math.max(0, ms) / 1000);
  if (s < 1) return `${Math.max(0, Math.round(ms))} ms`;
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function who(label) {
  const user = label.user ? `${plain(label.user)}@` : "";
  const host = label.host ? plain(label.host) : "an unnamed holder";
  const inside = [label.pid ? `pid ${label.pid}` : null, label.reason ? `"${plain(label.reason)}"` : null].filter(Boolean);
  return `${user}${host}${inside.length ? ` (${inside.join(", ")})` : ""}`;
}

function shellWord(name) {
  const text = plain(name);
  return /^[\p{L}\p{N}/._:@%+=,-]+$/u.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

const now = () => Date.now() + clockOffset;
const aged = (row, ms) => ms + (now() - row.at_ms);
const left = (row, holder) => holder.lease_left_ms - (now() - row.at_ms);
const oldestWait = (row) => Math.max(0, ...(row.waiters ?? []).map((waiter) => waiter.waited_ms));

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
    $("token").addEventListener("close", () => {
      sessionStorage.setItem("oarlock-token", $("token-input").value.trim());
      $("token-input").value = "";
      asking = null;
      done();
    }, { once: true });
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
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      if (field("event")) handle(field("event"), JSON.parse(field("data") ?? "null"));
    }
  }
}

// Follows a stream for as long as it is wanted, and opens it again when it ends.
async function follow(path, signal, handle, say = () => {}) {
  let pause = 250;
  while (!signal.aborted) {
    try {
      await stream(path, signal, (event, data) => { pause = 250; handle(event, data); });
    } catch (error) {
      if (signal.aborted) return;
      say(`disconnected: ${error.message}`);
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, 5000);
  }
}

function followLocks() {
  const say = (text) => { $("status").textContent = text; };
  follow("/v1/watch", new AbortController().signal, (event, data) => {
    if (event === "trouble") {
      $("trouble").hidden = !data.detail;
      $("trouble").textContent = data.detail ? `The store could not be read: ${plain(data.detail)}` : "";
    } else if (event === "store") {
      showStore();
    } else {
      if (event === "locks") locks.clear();
      clockOffset = data.now_ms - Date.now();
      for (const row of data.locks) {
        const holds = new Set(row.holders.map((holder) => holder.claim));
        for (const holder of locks.get(row.name)?.holders ?? []) if (!holds.has(holder.claim)) fullLease.delete(holder.claim);
        locks.set(row.name, row);
        for (const holder of row.holders) {
          fullLease.set(holder.claim, Math.max(holder.lease_left_ms, fullLease.get(holder.claim) ?? 0));
        }
      }
      for (const name of data.gone) {
        for (const holder of locks.get(name)?.holders ?? []) fullLease.delete(holder.claim);
        locks.delete(name);
      }
      say("live");
      if (event === "locks" || data.locks.length || data.gone.length) arrange();
    }
  }, say);
}

async function showStore() {
  const answer = await call("/v1/store");
  if (!answer.ok) return;
  store = await answer.json();
  rights = store.rights;
  $("store").textContent = plain(store.address);
  const findings = store.findings?.list ?? [];
  const isVoid = findings.some((finding) => finding.severity === "void");
  const words = findings.length ? `, ${findings.length} finding${findings.length > 1 ? "s" : ""}` : "";
  $("badge").hidden = false;
  $("badge").textContent = `${store.badge}${words}`;
  $("badge").className = `badge${isVoid ? " void" : !store.correct || findings.some((finding) => finding.severity !== "note") ? " unsafe" : ""}`;
  const rows = findings.map((finding) => element("div", {},
    element("h2", { class: finding.severity }, `${finding.severity.toUpperCase()} ${finding.id}`, finding.server ? ` on ${plain(finding.server)}` : ""),
    element("p", {}, plain(finding.reason)),
    element("p", {}, `Fix: ${finding.fix}. `, element("a", { href: finding.runbook, rel: "noreferrer" }, "More"))));
  const capabilities = Object.entries(store.capabilities).map(([key, value]) => element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, value)));
  $("findings").replaceChildren(
    ...(rows.length ? rows : [element("p", {}, store.findings ? "The doctor found nothing." : "The doctor is still asking.")]),
    element("h2", {}, "What the store can do"), element("table", {}, element("tbody", {}, ...capabilities)));
}

// ---- the list

function matcher(filter) {
  const text = filter.trim();
  if (!text) return () => true;
  if (/[*?]/.test(text)) {
    const source = text.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", "[^]*").replaceAll("?", "[^]");
    const pattern = new RegExp(`^${source}$`, "u");
    return (row) => pattern.test(row.name);
  }
  const low = text.toLowerCase();
  return (row) => row.name.toLowerCase().includes(low) || row.holders.some((holder) => who(holder.label).toLowerCase().includes(low));
}

const byName = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
const first = (row) => row.holders[0];
const sorts = {
  wait: (a, b) => aged(b, oldestWait(b)) * (oldestWait(b) > 0) - aged(a, oldestWait(a)) * (oldestWait(a) > 0),
  waiters: (a, b) => (b.waiting ?? 0) - (a.waiting ?? 0),
  age: (a, b) => (first(b) ? aged(b, first(b).held_ms) : 0) - (first(a) ? aged(a, first(a).held_ms) : 0),
  lease: (a, b) => (first(a) ? left(a, first(a)) : Infinity) - (first(b) ? left(b, first(b)) : Infinity) || 0,
  fence: (a, b) => Number(first(b)?.fence ?? 0) - Number(first(a)?.fence ?? 0),
  name: byName,
};

function arrange() {
  const wanted = matcher($("filter").value);
  const rows = [...locks.values()].filter(wanted);
  const compare = sorts[$("sort").value];
  rows.sort((a, b) => compare(a, b) || byName(a, b));
  order = rows.map((row) => row.name);
  if (selected !== null && !locks.has(selected)) selected = order[0] ?? null;
  const waited = rows.filter((row) => (row.waiting ?? 0) > 0).length;
  $("count").textContent = `${order.length} of ${locks.size} locks, ${waited} waited for`;
  $("empty").hidden = locks.size > 0;
  $("table").setAttribute("aria-rowcount", order.length + 1);
  draw();
}

const rowHeight = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) * 16;
const drawn = new Map(); // position → element

// Only the rows that can be seen are there.
function draw() {
  if ($("list").hidden) return;
  const height = rowHeight(), box = $("rows");
  $("space").style.height = `${order.length * height}px`;
  const from = Math.max(0, Math.floor(box.scrollTop / height) - 5);
  const to = Math.min(order.length, Math.ceil((box.scrollTop + box.clientHeight) / height) + 5);
  for (const [at, shown] of drawn) {
    if (at < from || at >= to) { shown.remove(); drawn.delete(at); }
  }
  for (let at = from; at < to; at++) {
    const row = locks.get(order[at]);
    if (!row) continue;
    let shown = drawn.get(at);
    if (!shown) {
      const open = (event) => { if (!event.target.closest("a")) location.hash = `#/lock/${encodeURIComponent(event.currentTarget.dataset.name)}`; };
      shown = element("div", { class: "row", role: "row", onclick: open }, ...["name", "state", "holder", "since number", "lease number", "fence number", "waiters number"]
        .map((kind) => element("span", { class: kind, role: "gridcell" })));
      shown.children[0].append(element("a", { tabindex: "-1" }));
      shown.children[4].append(element("span", { class: "bar" }, element("i"), element("b")));
      drawn.set(at, shown);
      $("space").append(shown);
    }
    shown.style.top = `${at * height}px`;
    fill(shown, row, at);
  }
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function fill(shown, row, at) {
  const [name, state, holder, since, lease, fence, waiters] = shown.children, held = first(row);
  name.firstChild.href = `#/lock/${encodeURIComponent(row.name)}`;
  shown.dataset.name = row.name;
  shown.setAttribute("aria-rowindex", at + 2);
  shown.classList.toggle("selected", row.name === selected);
  shown.setAttribute("aria-selected", row.name === selected);
  set(name.firstChild, plain(row.name));
  name.title = plain(row.name);
  set(state, `${row.state}${row.kind && row.kind !== "mutex" ? ` (${row.kind})` : ""}`);
  state.className = `state ${row.state}`;
  set(holder, held ? who(held.label) + (row.holders.length > 1 ? ` and ${row.holders.length - 1} more` : "") : "–");
  holder.title = holder.textContent;
  set(since, held ? span(aged(row, held.held_ms)) : "–");
  set(fence, held?.fence ?? "–");
  set(waiters, row.waiting === null ? "?" : String(row.waiting));
  bar(lease.firstChild, row, held);
}

function bar(box, row, holder) {
  box.hidden = !holder;
  if (!holder) return;
  const rest = Math.max(0, left(row, holder)), full = Math.max(fullLease.get(holder.claim) ?? rest, 1);
  box.firstChild.style.width = `${Math.min(100, (100 * rest) / full).toFixed(1)}%`;
  box.classList.toggle("low", rest < full / 3);
  set(box.lastChild, span(rest));
}

function select(name) {
  selected = name;
  const at = order.indexOf(name), height = rowHeight(), box = $("rows");
  if (at >= 0) {
    if (at * height < box.scrollTop) box.scrollTop = at * height;
    if ((at + 1) * height > box.scrollTop + box.clientHeight) box.scrollTop = (at + 1) * height - box.clientHeight;
  }
  draw();
}

function move(by) {
  const from = order.indexOf(selected), at = from < 0 ? by - 1 : from + by;
  if (order.length) select(order[Math.min(order.length - 1, Math.max(0, at))]);
}

// ---- one lock

let lockFollowed = null;
function openLock(name) {
  const path = `/v1/locks/${encodeURIComponent(name)}`;
  let row = null, history = null, timer = null, ticks = 0;
  const show = () => { if (row) drawLock(name, row, history); };
  const read = async () => {
    const answer = await call(`${path}/history`, { signal: lockFollowed.signal }).catch(() => null);
    if (answer?.ok) { history = await answer.json(); show(); }
  };
  $("lock").replaceChildren(element("p", { class: "soft" }, "reading …"));
  lockFollowed = new AbortController();
  lockFollowed.signal.addEventListener("abort", () => clearInterval(timer));
  timer = setInterval(() => { if (!row) return; show(); if (++ticks % 5 === 0) read(); }, 1000);
  read();
  follow(`${path}/watch`, lockFollowed.signal, (event, data) => {
    if (event === "lock") { row = data; clockOffset = data.at_ms - Date.now(); show(); setTimeout(read, 700); }
  }, (text) => { if (!row) $("lock").replaceChildren(element("p", { class: "trouble" }, text)); });
}

function labelCells(label) {
  const tags = Object.entries(label.tags ?? {}).map(([key, value]) => `${plain(key)}=${plain(value)}`).join(", ");
  return [plain(label.user || "–"), plain(label.host || "–"), label.pid ? String(label.pid) : "–", plain(label.reason ?? "–"), tags || "–"];
}

function table(head, rows) {
  return element("table", {}, element("thead", {}, element("tr", {}, ...head.map((word) => element("th", { scope: "col" }, word)))),
    element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))))));
}

function drawLock(name, row, history) {
  const focused = document.activeElement?.dataset?.key;
  const holders = row.holders.map((holder) => {
    const bars = element("span", { class: "bar" }, element("i"), element("b"));
    bar(bars, row, holder);
    const may = rights.break && holder.fence;
    return [...labelCells(holder.label), holder.kind, span(aged(row, holder.held_ms)), bars, holder.fence ?? "–",
      holder.ending ? element("span", { class: "lost" }, `asked to end by ${plain(holder.ending.by)}: ${plain(holder.ending.why)}`) : "",
      may ? element("button", { type: "button", class: "danger", "data-key": `break-${holder.claim}`, onclick: () => askBreak(name, holder, row) }, "Break …") : ""];
  });
  const waiters = (row.waiters ?? []).map((waiter, at) => [String(at + 1), ...labelCells(waiter.label), waiter.kind,
    span(aged(row, waiter.waited_ms)), waiter.behind ? `and ${waiter.behind} more in its process` : ""]);
  const word = shellWord(name), url = store ? ` -u ${shellWord(store.address)}` : "";
  // A name that begins with "-" must not be read as an option.
  const command = (verb, options = "") => name.startsWith("-") ? `oarlock ${verb}${options}${url} -- ${word}` : `oarlock ${verb}${options} ${word}${url}`;
  const commands = [command("show"), command("watch"), command("wait", " --free"),
    ...row.holders.filter((holder) => holder.fence).slice(0, 1).map((holder) => command("break", ` --fence ${holder.fence}`)),
    `curl -s ${location.origin}/v1/locks/${encodeURIComponent(name).replaceAll("'", "%27")}`];
  const percent = (word, spans) => spans && spans.count ? [[word, String(spans.count), span(spans.p50), span(spans.p90), span(spans.p99), span(spans.max)]] : [];
  $("lock").replaceChildren(
    element("p", {}, element("a", { href: "#/", "data-key": "back" }, "← all locks")),
    element("h2", {}, "Lock ", element("span", { class: "name" }, plain(name)), " ", element("span", { class: `state ${row.state}` }, row.state)),
    element("p", { class: "soft" }, `capacity ${row.capacity ?? "–"}, last fence ${row.last_fence ?? "–"}`),
    element("h2", {}, `Holders: ${row.holders.length}`),
    ...(holders.length ? [table(["User", "Host", "Pid", "Reason", "Tags", "Kind", "Since", "Lease left", "Fence", "End", "Action"], holders)] : []),
    element("h2", {}, `Queue, in order: ${row.waiting ?? "unknown"}`),
    ...(waiters.length ? [table(["Place", "User", "Host", "Pid", "Reason", "Tags", "Kind", "Waits", "Behind it"], waiters)] : []),
    element("h2", {}, "Last holders"),
    ...(history?.holds.length ? [timeline(history.holds), table(["Holder", "Reason", "Fence", "Since", "Held"], history.holds.slice(0, 20).map((hold) => [plain(hold.holder), plain(hold.reason ?? "–"),
      hold.fence ?? "–", new Date(hold.since_ms).toLocaleString(), hold.until_ms ? span(hold.until_ms - hold.since_ms) : "now"]))] : [element("p", { class: "soft" }, "None was seen yet.")]),
    ...(history ? [...(history.held_ms.count + history.waited_ms.count ? [table(["Span", "Count", "p50", "p90", "p99", "Longest"], [...percent("held", history.held_ms), ...percent("waited", history.waited_ms)])] : []),
      element("p", { class: "soft" }, "Sampled: a hold that began and ended between two samples is not here.")] : []),
    ...(history?.breaks.length ? [element("h2", {}, "Broken from here"), table(["When", "Fence", "By", "Why"], history.breaks.map((entry) => [new Date(entry.at_ms).toLocaleString(), entry.fence, plain(entry.by), plain(entry.why)]))] : []),
    element("h2", {}, "From a shell"), ...commands.map((text) => element("pre", { tabindex: "0" }, text)));
  if (focused) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

const SVG = "http://www.w3.org/2000/svg";
function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The last holders as bars over time, one line for each holder.
function timeline(holds) {
  const end = now(), shown = holds.slice(0, 60), start = Math.min(...shown.map((hold) => hold.since_ms));
  const names = [...new Set(shown.map((hold) => hold.holder))].slice(0, 12), width = 900, label = 220, line = 20;
  const at = (ms) => label + ((ms - start) / Math.max(1, end - start)) * (width - label - 10);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${names.length * line + 24}`, role: "img", "aria-label": "Timeline of the last holders; the table below has the same data" });
  names.forEach((name, index) => {
    chart.append(svg("text", { x: 6, y: index * line + 15 }, plain(name).slice(0, 32)));
    for (const hold of shown.filter((hold) => hold.holder === name)) {
      const from = at(hold.since_ms), to = at(hold.until_ms ?? end);
      const rect = svg("rect", { x: from, y: index * line + 4, width: Math.max(2, to - from), height: line - 7, rx: 2, class: hold.until_ms ? "" : "open" });
      rect.append(svg("title", {}, `fence ${hold.fence ?? "–"}, ${span((hold.until_ms ?? end) - hold.since_ms)}`));
      chart.append(rect);
    }
  });
  chart.append(svg("text", { x: label, y: names.length * line + 18 }, new Date(start).toLocaleTimeString()),
    svg("text", { x: width - 70, y: names.length * line + 18 }, "now"));
  return chart;
}

// ---- ending a hold

function askBreak(name, holder, row) {
  $("break-who").textContent = `"${plain(name)}" is held by ${who(holder.label)} for ${span(aged(row, holder.held_ms))}, fence ${holder.fence}.`;
  for (const id of ["break-name", "break-reason"]) $(id).value = "";
  $("break-answer").textContent = "";
  $("break-do").disabled = true;
  $("break-name").oninput = () => { $("break-do").disabled = $("break-name").value !== name; };
  $("break-do").onclick = async () => {
    $("break-do").disabled = true;
    const query = new URLSearchParams({ fence: holder.fence, grace_ms: String(Math.round(1000 * Number($("break-grace").value || 0))), reason: $("break-reason").value });
    const answer = await call(`/v1/locks/${encodeURIComponent(name)}?${query}`, { method: "DELETE" });
    $("break-answer").textContent = plain((await answer.json()).detail);
  };
  $("break").showModal();
}

// ---- the wait-for graph

const DRAWN = 40;

// Processes as boxes, in columns: each waits for those to its right. Those in one circle are in one column.
function drawing(graph, edges, inCycle) {
  const nodes = [...new Set(edges.flatMap((edge) => [edge.from, edge.to]))].slice(0, DRAWN), level = new Map(nodes.map((node) => [node, 0]));
  const drawn = edges.filter((edge) => level.has(edge.from) && level.has(edge.to));
  for (let pass = 0; pass < nodes.length; pass += 1) {
    for (const { from, to } of drawn.filter((edge) => !inCycle(edge))) level.set(from, Math.max(level.get(from), level.get(to) + 1));
  }
  for (const cycle of graph.cycles) {
    const most = Math.max(...cycle.map((node) => level.get(node) ?? 0));
    cycle.filter((node) => level.has(node)).forEach((node) => level.set(node, most));
  }
  const columns = Math.max(...level.values()) + 1, wide = 210, step = 300, line = 64, rows = new Map(), at = new Map();
  for (const node of nodes) {
    const column = level.get(node), row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    at.set(node, { x: 12 + (columns - 1 - column) * step, y: 12 + row * line });
  }
  const width = columns * step + 60, height = Math.max(...rows.values()) * line + 12;
  const chart = svg("svg", { class: "chart graph", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "Which process waits for which; the table below has the same data, and more" });
  chart.style.maxWidth = `${width}px`;
  const heads = svg("defs", {});
  for (const kind of ["edge", "cycle"]) {
    const head = svg("marker", { id: `head-${kind}`, viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto" });
    head.append(svg("path", { class: `${kind} head`, d: "M0 0 L8 4 L0 8 z" }));
    heads.append(head);
  }
  chart.append(heads);
  for (const edge of drawn) {
    const kind = inCycle(edge) ? "cycle" : "edge", from = at.get(edge.from), to = at.get(edge.to), same = from.x === to.x;
    const start = { x: from.x + wide, y: from.y + 20 }, end = same ? { x: to.x + wide, y: to.y + 28 } : { x: to.x, y: to.y + 24 };
    const out = same ? 70 : (end.x - start.x) / 2, back = same ? 70 : -out;
    const path = svg("path", { class: kind, d: `M${start.x} ${start.y} C${start.x + out} ${start.y} ${end.x + back} ${end.y} ${end.x} ${end.y}`, "marker-end": `url(#head-${kind})` });
    path.append(svg("title", {}, `${plain(graph.processes[edge.from])} waits for ${plain(graph.processes[edge.to])}: ${plain(edge.name)}`));
    chart.append(path);
  }
  for (const [node, { x, y }] of at) {
    const name = plain(graph.processes[node]), cyclic = graph.cycles.some((cycle) => cycle.includes(node));
    const box = svg("g", { class: cyclic ? "cycle" : "process" });
    box.append(svg("title", {}, name), svg("rect", { x, y, width: wide, height: 44, rx: 6 }),
      svg("text", { x: x + 8, y: y + 27 }, name.length > 28 ? `${name.slice(0, 27)}…` : name));
    chart.append(box);
  }
  return chart;
}

async function drawGraph() {
  const answer = await call("/v1/graph");
  if (!answer.ok || $("graph").hidden) return;
  const graph = await answer.json(), circle = new Map();
  graph.cycles.forEach((cycle, index) => cycle.forEach((process) => circle.set(process, index)));
  const inCycle = (edge) => circle.has(edge.from) && circle.get(edge.from) === circle.get(edge.to);
  const edges = [...graph.edges].sort((a, b) => inCycle(b) - inCycle(a)).slice(0, 500);
  const cycles = graph.cycles.map((cycle) => element("p", { class: "cycle" },
    `Deadlock, unless one gives up: ${cycle.map((process) => plain(graph.processes[process])).join(" ⇄ ")}`));
  $("graph").replaceChildren(element("h2", {}, "Who waits for whom"),
    ...(cycles.length ? cycles : [element("p", {}, "No process waits in a circle.")]),
    ...(edges.length ? [drawing(graph, edges, inCycle), ...(graph.processes.length > DRAWN ? [element("p", { class: "soft" }, `Drawn: ${DRAWN} of ${graph.processes.length} processes.`)] : []), table(["Waits", "for", "on the lock"], edges.map((edge) => [
      element("span", { class: inCycle(edge) ? "cycle" : "" }, plain(graph.processes[edge.from])),
      element("span", { class: inCycle(edge) ? "cycle" : "" }, plain(graph.processes[edge.to])),
      element("a", { href: `#/lock/${encodeURIComponent(edge.name)}` }, plain(edge.name))]))] : [element("p", { class: "soft" }, "No process waits.")]),
    ...(graph.edges.length > edges.length ? [element("p", { class: "soft" }, `and ${graph.edges.length - edges.length} more`)] : []));
}

// ---- views and keys

// `null` for what is no encoded name: the list is shown then.
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return null; }
}

let graphTimer = null;
function route() {
  const hash = location.hash, name = hash.startsWith("#/lock/") ? decoded(hash.slice(7)) : null;
  lockFollowed?.abort();
  clearInterval(graphTimer);
  $("list").hidden = hash === "#/graph" || name !== null;
  $("lock").hidden = name === null;
  $("graph").hidden = hash !== "#/graph";
  document.title = name === null ? "Oarlock" : `${plain(name)} – Oarlock`;
  if (name !== null) { selected = name; openLock(name); $("main").focus(); }
  else if (hash === "#/graph") { drawGraph(); graphTimer = setInterval(drawGraph, 2000); $("main").focus(); }
  else { arrange(); $("rows").focus(); }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    if (typing) { event.target.blur(); $("rows").focus(); } else location.hash = "#/";
    return;
  }
  if (typing && !(event.target === $("filter") && ["ArrowDown", "Enter"].includes(event.key))) return;
  const page = Math.max(1, Math.floor($("rows").clientHeight / rowHeight()) - 1);
  const listed = {
    ArrowDown: () => { $("rows").focus(); move(1); }, j: () => move(1), ArrowUp: () => move(-1), k: () => move(-1),
    PageDown: () => move(page), PageUp: () => move(-page), Home: () => move(-order.length), End: () => move(order.length),
    Enter: () => { if (selected ?? order[0]) location.hash = `#/lock/${encodeURIComponent(selected ?? order[0])}`; },
    s: () => { $("sort").selectedIndex = ($("sort").selectedIndex + 1) % $("sort").length; arrange(); },
    "/": () => $("filter").focus(),
  };
  const anywhere = { g: () => { location.hash = "#/graph"; }, "?": () => $("help").showModal() };
  const onButton = /^(A|BUTTON)$/.test(event.target.tagName) && event.key === "Enter" && !event.target.classList.contains("row");
  const act = (!$("list").hidden && !onButton && listed[event.key]) || anywhere[event.key];
  if (act) { event.preventDefault(); act(); }
});
$("tools").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", arrange);
$("sort").addEventListener("change", arrange);
$("rows").addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
$("help-open").addEventListener("click", () => $("help").showModal());
$("badge").addEventListener("click", () => {
  $("findings").hidden = !$("findings").hidden;
  $("badge").setAttribute("aria-expanded", !$("findings").hidden);
});
addEventListener("resize", () => { for (const shown of drawn.values()) shown.remove(); drawn.clear(); draw(); });
addEventListener("hashchange", route);
setInterval(() => { if (!document.hidden) draw(); }, 250);

route();
showStore().catch(() => {});
followLocks();
