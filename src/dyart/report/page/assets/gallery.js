// The most vulnerable examples of the chosen run.

const gallery = document.getElementById("gallery");
const more = document.getElementById("more");
const FIRST = 12;
const MOST = 24;

function drawGallery(count = FIRST) {
  if (!gallery) return;
  const points = data.runs[state.run].points;
  const rows = Array.from({ length: Math.min(MOST, points?.margin.length ?? 0) }, (_, row) => row);
  gallery.replaceChildren(...rows.slice(0, count).map((row) => {
    const item = document.createElement("li");
    const way = document.createElement("p");
    const facts = document.createElement("p");
    const trio = document.createElement("div");
    way.className = "way";
    way.textContent = `${points.classes[points.label[row]]} → ${points.classes[points.rival?.[row]] ?? "unknown"}`;
    trio.className = "trio";
    facts.className = "facts";
    const margin = document.createElement("span");
    margin.textContent = `margin ${small(points.margin[row])}`;
    facts.append(margin);
    const losing = points.methods.filter((method) => method.speed[row] < 0).map((method) => method.name);
    if (losing.length) {
      const closer = document.createElement("span");
      closer.className = "closer";
      closer.textContent = `closer under ${losing.join(", ")}`;
      facts.append(closer);
    }
    item.append(way, trio, facts);
    showTrio(trio, state.run, row);
    return item;
  }));
  more.hidden = rows.length <= count;
}

more?.addEventListener("click", () => {
  const seen = gallery.children.length;
  drawGallery(MOST);
  gallery.children[seen].tabIndex = -1;
  gallery.children[seen].focus();
});
