// Tables that are patched.

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
