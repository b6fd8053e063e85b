// The list of all locks: what is in it, live, filtered and sorted.

const locks = new Map(); // name → row of the server, with its sort keys
let order = []; // the names that are shown, in order
let selected = null;

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

const first = (row) => row.holders[0];

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
  const all = `${locks.size.toLocaleString("en")} lock${locks.size === 1 ? "" : "s"}`;
  set($("count"), order.length === locks.size ? all : `${order.length.toLocaleString("en")} of ${all}`);
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
