"use strict";
// Colours and the common look of all plots, for the light and the dark theme.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { run: 0, method: null };

// "@blue/0.2" is the colour --blue of the style sheet, with an opacity.
function colour(name) {
  const [key, alpha] = name.slice(1).split("/");
  const hex = getComputedStyle(document.documentElement).getPropertyValue(`--${key}`).trim();
  const full = hex.length === 4 ? "#" + [...hex.slice(1)].map((digit) => digit + digit).join("") : hex;
  const parts = [1, 3, 5].map((start) => parseInt(full.slice(start, start + 2), 16));
  return `rgba(${parts.join(",")},${alpha ?? 1})`;
}

// A copy of a figure's part with the colours put in: only where a colour belongs, since a name may begin with @, too.
function painted(value, key = "") {
  if (Array.isArray(value)) return value.map((part) => painted(part, key));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, painted(part, name)]));
  }
  const named = typeof value === "string" && value.startsWith("@") && key.toLowerCase().endsWith("color");
  return named ? colour(value) : value;
}

function axis(own = {}) {
  const line = { gridcolor: colour("@grid"), linecolor: colour("@line"), zerolinecolor: colour("@line") };
  const title = { ...own.title, standoff: 8, font: { size: 13, color: colour("@muted") } };
  return { ...line, automargin: true, ticks: "", fixedrange: true, tickfont: { color: colour("@muted") }, ...own, title };
}

function layout(own) {
  const { xaxis, yaxis, ...rest } = painted(own);
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("@ink") },
    hoverlabel: { bgcolor: colour("@paper"), bordercolor: colour("@line"), font: { color: colour("@ink") }, namelength: -1 },
    margin: { l: 50, r: 14, t: own.annotations ? 24 : 10, b: 44 },
    showlegend: false,
    dragmode: false,
    hovermode: "x unified",
    ...rest,
    xaxis: axis(xaxis),
    yaxis: axis(yaxis),
  };
}

const config = { displayModeBar: false, responsive: true, doubleClick: "reset", scrollZoom: false, showTips: false };
