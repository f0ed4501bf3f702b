// What a reader does with a page: put curves away, point at one, touch a cell that has more to say. Nothing is fetched.
"use strict";
for (const figure of document.querySelectorAll("figure[data-own]")) {
  const own = figure.dataset.own, svg = figure.querySelector("svg"), said = figure.querySelector("output");
  const numbers = JSON.parse(figure.dataset.numbers), keys = [...figure.querySelectorAll("button")];
  const path = n => document.getElementById(`${own}-c${n}`)?.querySelector("path");
  const parts = n => figure.querySelectorAll(`[id^="${own}-c${n}"]`);
  keys.forEach((key, n) => key.addEventListener("click", () => {
    const off = key.getAttribute("aria-pressed") === "true";
    key.setAttribute("aria-pressed", String(!off));
    for (const part of parts(n)) if (new RegExp(`-c${n}(-band)?$`).test(part.id)) part.style.display = off ? "none" : "";
  }));
  const places = keys.map((_, n) => {
    const found = [...(path(n)?.getAttribute("d") ?? "").matchAll(/[ML] ([-\d.]+) ([-\d.]+)/g)].map(m => [+m[1], +m[2]]);
    return found.length === numbers[n].length ? found : [];
  });
  svg.addEventListener("pointermove", event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = null, nearest = 400;
    places.forEach((curve, n) => keys[n].getAttribute("aria-pressed") === "true" && curve.forEach(([x, y], i) => {
      const far = (x - at.x) ** 2 + (y - at.y) ** 2;
      if (far < nearest) { nearest = far; best = [n, i]; }
    }));
    said.textContent = best ? `${keys[best[0]].textContent.trim()}: ${numbers[best[0]][best[1]].join(", ")}` : "";
  });
  svg.addEventListener("pointerleave", () => { said.textContent = ""; });
}
const more = document.getElementById("more");
document.addEventListener("click", event => {
  const cell = event.target.closest?.("[data-more]");
  more.textContent = cell ? cell.dataset.more : "";
  more.hidden = !cell;
});
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && event.target.dataset?.more) event.target.click();
  if (event.key === "Escape") more.hidden = true;
});
