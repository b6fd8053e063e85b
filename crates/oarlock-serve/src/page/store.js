// The store: its badge, and what the doctor found.

let rights = {};
let store = null;

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
