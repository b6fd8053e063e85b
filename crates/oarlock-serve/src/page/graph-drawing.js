// The drawing of the wait-for graph: processes as boxes in columns, each waits for those to its right. Those in one
// circle are in one column; on a narrow page all are, those that wait above. Each line has its own end at a box, and
// its own lane beside a column, so that it can be followed.

const DRAWN = 40;
const BOX = { height: 46, row: 62, passage: 22 };
const LANE = 14;

// How many processes each one waits for, one after the other. A line that closes a circle does not count.
function depths(nodes, edges, cycles) {
  const groups = new Map(nodes.map((node) => [node, cycles.findIndex((cycle) => cycle.includes(node))])),
    known = new Map();
  const group = (node) => (groups.get(node) < 0 ? node : `circle ${groups.get(node)}`);
  const depth = (of) => {
    if (known.has(of)) return known.get(of);
    known.set(of, -1);
    const next = edges.filter((edge) => group(edge.from) === of && group(edge.to) !== of);
    const deepest = Math.max(0, ...next.map((edge) => depth(group(edge.to)) + 1));
    known.set(of, deepest);
    return deepest;
  };
  return new Map(nodes.map((node) => [node, depth(group(node))]));
}

// A line for each wait, with the column where it begins and where it ends; `passages` are what it goes through between.
function linesOf(edges, columnOf) {
  return edges.map((edge) => {
    const [begin, end] = [columnOf(edge.from), columnOf(edge.to)];
    const passages = Array.from({ length: Math.max(0, end - begin - 1) }, (_, at) => ({ column: begin + 1 + at }));
    return { edge, begin, end, passages, ahead: end > begin };
  });
}

// Puts boxes and passages into their columns: each beside what it leads to, as far as there is room.
function arrangeBoxes(boxes, lines, columns) {
  const after = (line, column) => line.passages.find((passage) => passage.column === column) ?? boxes.get(line.edge.to);
  let height = 0;
  for (let column = columns - 1; column >= 0; column -= 1) {
    const items = [...boxes.values()].filter((box) => box.column === column);
    for (const box of items)
      box.next = lines
        .filter((line) => line.ahead && line.edge.from === box.node)
        .map((line) => after(line, column + 1));
    for (const line of lines)
      for (const passage of line.passages.filter((passage) => passage.column === column)) {
        passage.next = [after(line, column + 1)];
        items.push(passage);
      }
    const wanted = ({ next }) => (next.length ? next.reduce((sum, item) => sum + item.y, 0) / next.length : 0);
    items.sort((a, b) => wanted(a) - wanted(b));
    let free = 10;
    for (const item of items) {
      item.y = Math.max(free, wanted(item));
      free = item.y + (item.node === undefined ? BOX.passage : BOX.row);
    }
    height = Math.max(height, free);
  }
  return height;
}

// Where lines begin and end at the sides of a box. Beside a column they go up or down: the order is that in which they
// do not cross.
function placeEnds(boxes, lines) {
  const sides = new Map([...boxes.values()].map((box) => [box, { left: [], right: [] }]));
  lines.forEach((line, index) => {
    const [from, to] = [boxes.get(line.edge.from), boxes.get(line.edge.to)];
    const beside = (box, other) => (other.y < box.y ? [0, -other.y, -index] : [2, -other.y, index]);
    const start = line.ahead ? [1, (line.passages[0] ?? to).y, index] : beside(from, to);
    sides.get(from).right.push({ order: start, put: (y) => (line.startY = y) });
    const end = line.ahead ? [1, (line.passages.at(-1) ?? from).y, index] : beside(to, from);
    sides.get(to)[line.ahead ? "left" : "right"].push({ order: end, put: (y) => (line.endY = y) });
  });
  for (const [box, { left, right }] of sides)
    for (const ends of [left, right]) {
      ends.sort((a, b) => a.order[0] - b.order[0] || a.order[1] - b.order[1] || a.order[2] - b.order[2]);
      ends.forEach((end, at) => end.put(box.y + (BOX.height * (at + 1)) / (ends.length + 1)));
    }
}

// Gives each line beside a column a lane: a longer one goes round the shorter ones. Returns how many lanes there are.
function chooseLanes(lines) {
  const taken = [];
  const length = (line) => Math.abs(line.startY - line.endY);
  for (const line of lines.filter((line) => !line.ahead).sort((a, b) => length(a) - length(b))) {
    const [top, bottom] = [Math.min(line.startY, line.endY), Math.max(line.startY, line.endY)];
    const meets = (other) => other.column === line.begin && other.top < bottom + 4 && top < other.bottom + 4;
    line.lane = 0;
    while (taken.some((other) => other.lane === line.lane && meets(other))) line.lane += 1;
    taken.push({ column: line.begin, lane: line.lane, top, bottom });
  }
  return Math.max(0, ...taken.map((other) => other.lane + 1));
}

// A line beside a column, with round corners, or one that leads to the next columns.
function lineThrough(line, from, to, wide, lane) {
  if (!line.ahead) {
    const [x, end, side] = [from.x + wide, to.x + wide, Math.max(from.x, to.x) + wide + 18 + line.lane * lane];
    const turn = Math.min(8, Math.abs(line.endY - line.startY) / 2) * Math.sign(line.endY - line.startY),
      round = Math.abs(turn);
    return (
      `M${x} ${line.startY} H${side - round} Q${side} ${line.startY} ${side} ${line.startY + turn} ` +
      `V${line.endY - turn} Q${side} ${line.endY} ${side - round} ${line.endY} H${end}`
    );
  }
  let [x, y, path] = [from.x + wide, line.startY, `M${from.x + wide} ${line.startY}`];
  const curve = (nextX, nextY) => {
    const middle = (x + nextX) / 2;
    path += ` C${middle} ${y} ${middle} ${nextY} ${nextX} ${nextY}`;
    [x, y] = [nextX, nextY];
  };
  for (const passage of line.passages) {
    curve(passage.x, passage.y + BOX.passage / 2);
    x += wide;
    path += ` H${x}`;
  }
  curve(to.x, line.endY);
  return path;
}

function arrowHeads() {
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
  return heads;
}

function processBox(name, wanted, cyclic, { x, y }, wide) {
  const box = svg("g", { class: cyclic ? "cycle" : "process" });
  box.append(
    svg("title", {}, name),
    svg("rect", { x, y, width: wide, height: BOX.height, rx: 8 }),
    svg("text", { x: x + 12, y: y + (wanted.length ? 20 : 28) }, cut(name, wide - 20, 7.6)),
  );
  if (wanted.length) {
    const more = wanted.length > 1 ? ` and ${wanted.length - 1} more` : "";
    const text = `waits for ${cut(plain(wanted[0]), wide - 92 - 7 * more.length)}${more}`;
    box.append(svg("text", { class: "wants", x: x + 12, y: y + 37 }, text));
  }
  return box;
}

function drawing(graph, edges, inCycle, room) {
  const nodes = [...new Set(edges.flatMap((edge) => [edge.from, edge.to]))].slice(0, DRAWN),
    isDrawn = new Set(nodes);
  const drawn = edges.filter((edge) => isDrawn.has(edge.from) && isDrawn.has(edge.to)),
    depth = depths(nodes, drawn, graph.cycles);
  let columns = Math.max(...depth.values()) + 1;
  const narrow = columns * 330 + 20 > room,
    wide = narrow ? Math.min(320, room - 110) : 230;
  if (narrow) nodes.sort((a, b) => depth.get(b) - depth.get(a));
  const columnOf = (node) => (narrow ? 0 : columns - 1 - depth.get(node)),
    boxes = new Map(nodes.map((node) => [node, { node, column: columnOf(node) }])),
    lines = linesOf(drawn, columnOf);
  if (narrow) columns = 1;
  const height = arrangeBoxes(boxes, lines, columns);
  placeEnds(boxes, lines);
  const lanes = chooseLanes(lines),
    lane = narrow ? Math.min(LANE, 60 / Math.max(1, lanes)) : LANE,
    beside = lanes ? 28 + lanes * lane : 0,
    step = wide + Math.max(90, beside + 50);
  for (const item of [...boxes.values(), ...lines.flatMap((line) => line.passages)]) item.x = 8 + item.column * step;
  const width = 16 + (columns - 1) * step + wide + beside;
  const chart = svg("svg", {
    class: "chart graph",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": "Which process waits for which; the table below has the same data, and more",
  });
  chart.append(arrowHeads());
  for (const line of lines) {
    const { edge } = line,
      kind = inCycle(edge) ? "cycle" : "edge",
      d = lineThrough(line, boxes.get(edge.from), boxes.get(edge.to), wide, lane);
    const path = svg("path", { class: kind, d, "marker-end": `url(#head-${kind})` }),
      [waiter, holder] = [edge.from, edge.to].map((node) => plain(graph.processes[node]));
    path.append(svg("title", {}, `${waiter} waits for ${holder}: ${plain(edge.name)}`));
    // Where two lines cross, the lower one is cut.
    chart.append(svg("path", { class: "below", d }), path);
  }
  for (const box of boxes.values()) {
    const wanted = [...new Set(drawn.filter((edge) => edge.from === box.node).map((edge) => edge.name))],
      cyclic = graph.cycles.some((cycle) => cycle.includes(box.node));
    chart.append(processBox(plain(graph.processes[box.node]), wanted, cyclic, box, wide));
  }
  return chart;
}
