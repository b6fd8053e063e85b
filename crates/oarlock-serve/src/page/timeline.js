// The last holders of a lock as a chart.

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
