// Plots of all runs, with the chosen one in front, and plots of the chosen run alone.

function emphasized(traces) {
  if (data.runs.length < 2) return traces;
  return traces.map((trace) => {
    const chosen = !trace.meta || trace.meta.run === state.run;
    const width = trace.line?.width ?? 2;
    return { ...trace, opacity: chosen ? 1 : 0.7, line: { ...trace.line, width: chosen ? width : Math.min(width, 1.5) } };
  });
}

// Draws, and says in words what is drawn: the parts of a plot are of no use to a screen reader.
function drawn(place, words, traces, own) {
  Plotly.react(place, painted(traces), layout(own), config);
  place.setAttribute("aria-label", words);
  for (const part of [...place.children, document.getElementById("js-plotly-tester")]) part?.setAttribute("aria-hidden", "true");
}

function draw(place, figure) {
  place.closest("figure").hidden = !figure;
  if (figure) drawn(place, figure.alt, emphasized(figure.data), figure.layout);
}

function drawPlots() {
  for (const place of document.querySelectorAll("[data-figure]")) draw(place, data.figures[place.dataset.figure]);
  const choice = document.getElementById("other-choice");
  if (choice) draw(document.getElementById("other-plot"), data.others[choice.value]);
}

function drawPlotsOfRun() {
  for (const place of document.querySelectorAll("[data-figure-of-run]")) {
    draw(place, data.ofRun[place.dataset.figureOfRun][state.run]);
  }
}
