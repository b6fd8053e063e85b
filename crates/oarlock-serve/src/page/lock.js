// The page of one lock: holders, queue, history.

const SHOWN_WAITERS = 200;
// The history is read so long after a change, and up to so much longer: not by all pages at one moment.
const READ_AFTER = 700,
  READ_WITHIN = 2000,
  RETRY_MOST = 30_000;
// What a lock is besides its leases and ages.
const claimsOf = (row) =>
  JSON.stringify([
    row.state,
    row.waiting,
    row.holders.map(({ claim, fence, ending }) => [claim, fence, ending]),
    row.waiters?.map(({ claim }) => claim),
  ]);
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
    again = false,
    retry = READ_AFTER,
    soon = null,
    shown = null;
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
    { title: "Position", class: "number position", text: (_, at) => at + 1 },
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

  // The stream tells of changes and of renewals, in their order: the clock of the server may be set.
  const take = (data) => {
    if (row && claimsOf(row) !== claimsOf(data)) readSoon();
    forget(row, data);
    for (const holder of data.holders) noteLease(data, holder);
    row = data;
    clockOffset = data.now_ms - Date.now();
    write();
  };
  const read = () => {
    // What changes while the answer is under way may be missing in it.
    if (reading) again = true;
    reading ??= call(`${path}/history`)
      .then(async (answer) => {
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        history = await answer.json();
        retry = READ_AFTER;
        writeHistory();
      })
      .catch(() => {
        again = true;
        retry = Math.min(2 * retry, RETRY_MOST);
      })
      .finally(() => {
        reading = null;
        if (again) readSoon();
        again = false;
      });
  };
  // Soon after a change or a sample: what is written then must be there, and changes may come in a burst.
  const readSoon = () => {
    if (shown.aborted) return;
    soon ??= setTimeout(
      () => {
        soon = null;
        read();
      },
      retry + Math.random() * READ_WITHIN,
    );
  };
  return (signal) => {
    shown = signal;
    const timer = setInterval(write, 1000);
    addEventListener("resize", writeHistory, { signal });
    signal.addEventListener("abort", () => {
      clearInterval(timer);
      clearTimeout(soon);
      soon = null;
    });
    leases.clear();
    read();
    follow(`${path}/watch`, signal, (event, data) => {
      if (event === "lock") take(data);
      if (event === "history") readSoon();
      if (event !== "history") failed.hidden = event !== "trouble";
      if (event === "trouble") set(failed, `The store could not be read: ${plain(data.detail)}`);
    });
  };
}
