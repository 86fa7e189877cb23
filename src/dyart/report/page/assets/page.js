// Joins the parts: the choice of a run, of the theme, of paper.

function showRun(run) {
  state.run = run;
  for (const part of document.querySelectorAll("[data-run]")) part.hidden = Number(part.dataset.run) !== run;
  drawPlots();
  drawPlotsOfRun();
  startScatter();
  drawGallery();
}

function repaint() {
  drawPlots();
  drawPlotsOfRun();
  drawScatter();
  drawGallery(gallery?.children.length || undefined);
}

document.getElementById("switch")?.addEventListener("change", (event) => showRun(Number(event.target.value)));
document.getElementById("other-choice")?.addEventListener("change", drawPlots);
document.getElementById("only-differences")?.addEventListener("change", (event) => {
  document.getElementById("settings-table").classList.toggle("only-differences", event.target.checked);
});
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", repaint);

showRun(0);
listenToScatter();
document.documentElement.dataset.ready = "yes"; // for whoever waits for the page
