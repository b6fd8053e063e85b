// The view of the wait-for graph: who waits for whom, as a drawing and as a table.

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
    { title: "Waiter", fill: name("waiter") },
    { title: "Holder", fill: name("holder") },
    { title: "Lock", class: "mono", fill: link },
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
