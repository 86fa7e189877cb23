// Margin and speed of every example; the one under the pointer, the finger or the slider is shown beside the plot.

const splits = { train: "training", test: "test" };
const scatter = document.getElementById("scatter");

function small(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size > 0 && size < 0.001 ? value.toExponential(1) : Number(value.toPrecision(3)).toString();
}

function methodOf(points) {
  return points.methods.find((method) => method.key === state.method) ?? points.methods[0];
}

function chooseMethods(points) {
  const field = document.getElementById("methods");
  const wanted = [state.method, data.runs[state.run].method].find((key) => points.methods.some((one) => one.key === key));
  state.method = wanted ?? points.methods[0].key;
  const choices = points.methods.flatMap((method, number) => {
    const input = document.createElement("input");
    const label = document.createElement("label");
    Object.assign(input, { type: "radio", name: "method", id: `method-${number}`, value: method.key });
    input.checked = method.key === state.method;
    label.htmlFor = input.id;
    label.textContent = method.name;
    return [input, label];
  });
  field.replaceChildren(field.querySelector("legend"), ...choices);
}

function drawScatter() {
  if (!scatter) return;
  const points = data.runs[state.run].points;
  scatter.hidden = !points?.methods.length;
  if (scatter.hidden) return;
  const method = methodOf(points);
  const height = method.speed.map((speed) => Math.max(-1, Math.min(1, speed / method.scale)));
  const outside = method.speed.filter((speed) => Math.abs(speed) > method.scale).length;
  const mark = {
    size: 7,
    color: method.speed.map((speed) => (speed < 0 ? "@towards/0.75" : "@away/0.6")),
    symbol: method.speed.map((speed) => (Math.abs(speed) <= method.scale ? "circle" : speed < 0 ? "triangle-down" : "triangle-up")),
    line: { width: 0 },
  };
  const trace = { type: "scatter", mode: "markers", x: points.margin, y: height, marker: mark, hoverinfo: "none" };
  const vulnerable = { type: "rect", x0: 0, x1: points.radius, y0: 0, y1: 1, yref: "paper", fillcolor: "@muted/0.06", line: { width: 0 }, layer: "below" };
  const label = { x: points.radius, y: 1, yref: "paper", xanchor: "right", yanchor: "bottom", showarrow: false, font: { color: "@muted", size: 12 } };
  const place = document.getElementById("scatter-plot");
  const below = method.speed.filter((_, row) => points.margin[row] < points.radius);
  const closer = below.filter((speed) => speed < 0).length;
  const words = `Margin against speed of ${points.margin.length} examples under a step of ${method.name}: ` +
    `${closer} of the ${below.length} below the radius ${points.radiusText} have a negative speed.`;
  drawn(place, words, [trace], {
    hovermode: "closest",
    hoverdistance: 30,
    shapes: [vulnerable],
    annotations: [{ ...label, text: "below the radius" }],
    xaxis: { title: { text: "margin" }, range: [0, points.margin.at(-1) * 1.03] },
    yaxis: { title: { text: ["speed, scaled", points.under].filter(Boolean).join(", ") }, range: [-1.08, 1.08], zerolinewidth: 2, zerolinecolor: "@muted" },
  });
  document.getElementById("scatter-caption").textContent =
    `${points.margin.length} of ${points.examples} ${splits[points.split] ?? ""} examples: those classified correctly, with a ` +
    "locally closest boundary point. " +
    `The speed is divided by ${small(method.scale)}` + (outside ? `; the ${outside} larger ones are triangles at the edge.` : ".");
  listenToPlot(place);
  showExample(Number(document.getElementById("walk").value));
}

function fact(term, value, marked) {
  const name = document.createElement("dt");
  const worth = document.createElement("dd");
  name.textContent = term;
  worth.textContent = value;
  if (marked) worth.className = "closer";
  return [name, worth];
}

function showExample(row) {
  const points = data.runs[state.run].points;
  const named = (label) => points.classes[label] ?? "unknown";
  const [own, rival] = [named(points.label[row]), named(points.rival?.[row])];
  document.getElementById("example-class").textContent = own;
  document.getElementById("example-rival").textContent = rival;
  const speeds = points.methods.flatMap((method) =>
    fact(`speed, ${method.name}`, small(method.speed[row]), method.speed[row] < 0));
  document.getElementById("example-facts").replaceChildren(
    ...fact("margin", small(points.margin[row])), ...speeds,
    ...(points.alignment ? fact("alignment", small(points.alignment[row])) : []),
    ...fact(`${splits[points.split] ?? ""} example`.trim(), points.index[row]));
  const walk = document.getElementById("walk");
  walk.value = row;
  walk.setAttribute("aria-valuetext", `${own}, closest other class ${rival}, margin ${small(points.margin[row])}`);
  showTrio(document.getElementById("example-trio"), state.run, row);
  moveRing(row);
}

function moveRing(row) {
  const place = document.getElementById("scatter-plot");
  const { xaxis, yaxis } = place._fullLayout;
  const shown = place.data[0];
  const ring = document.getElementById("ring");
  ring.style.left = `${place.offsetLeft + xaxis._offset + xaxis.l2p(shown.x[row])}px`;
  ring.style.top = `${place.offsetTop + yaxis._offset + yaxis.l2p(shown.y[row])}px`;
}

// Once there is a plot to listen to: the run shown first may have no examples.
function listenToPlot(place) {
  if (place.dataset.heard) return;
  place.dataset.heard = "yes";
  const chosen = (event) => showExample(event.points[0].pointNumber);
  place.on("plotly_hover", chosen);
  place.on("plotly_click", chosen);
  place.on("plotly_afterplot", () => moveRing(Number(document.getElementById("walk").value)));
}

function listenToScatter() {
  if (!scatter) return;
  const walk = document.getElementById("walk");
  walk.addEventListener("input", () => showExample(Number(walk.value)));
  document.getElementById("methods").addEventListener("change", (event) => {
    state.method = event.target.value;
    drawScatter();
  });
}

function startScatter() {
  const points = data.runs[state.run].points;
  if (!scatter || !points?.methods.length) return drawScatter();
  chooseMethods(points);
  const walk = document.getElementById("walk");
  walk.max = points.margin.length - 1;
  walk.value = 0;
  drawScatter();
}
