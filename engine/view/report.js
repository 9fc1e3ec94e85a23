// Draws the report's figures, one at a time so that the page stays responsive, and unfolds everything for printing.
// No text of a run is in here: figures are JSON elements, texts are HTML.
(() => {
  const figures = [...document.querySelectorAll(".figure")];
  const options = { responsive: true, displayModeBar: false };
  const next = () => {
    const target = figures.shift();
    if (!target) return;
    const { data, layout } = JSON.parse(document.getElementById(target.dataset.figure).textContent);
    Plotly.newPlot(target, data, layout, options).then(() => {
      target.dataset.drawn = "yes";
      setTimeout(next);
    });
  };
  next();

  let unfolded = [];
  window.addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details.card:not([open])")];
    unfolded.forEach((details) => { details.open = true; });
  });
  window.addEventListener("afterprint", () => {
    unfolded.forEach((details) => { details.open = false; });
  });
})();
