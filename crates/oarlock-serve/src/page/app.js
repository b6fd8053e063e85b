// Views and keys. The page uses the HTTP API and nothing else.

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
