/* Draws elements, and the bar of what the memory of a machine is for. */
"use strict";
(() => {
  const { budget } = ImagePicker;
  const gb = (size) => `${(size / 1e9).toFixed(1)} GB`;

  /** Make an element; text is never markup. */
  function make(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function shape(tag, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  /** Return what a start takes, as [class, title, bytes]. */
  function parts(judged) {
    const { need, known, taken, fixed } = budget(judged);
    return [["weights", "weights", need.weights ?? 0], ["drafter", "drafter", need.drafter], ["working", "working memory", known.working], ["cache", "KV cache", Math.max(0, taken - fixed)]];
  }

  /** Fill a figure with a bar of parts, and the end of the memory; the caption has the figures. */
  function drawBar(figure, all, total) {
    const shown = all.filter(([, , size]) => size > 0);
    const sum = shown.reduce((before, [, , size]) => before + size, 0);
    const scale = 1000 / Math.max(total, sum);
    let x = 0;
    const boxes = shown.map(([name, , size]) => {
      x += size * scale;
      return shape("rect", { class: `picker-part-${name}`, x: (x - size * scale).toFixed(1), y: 0, width: Math.max(0, size * scale - 2).toFixed(1), height: 28 });
    });
    const end = (total * scale - 1).toFixed(1);
    figure.querySelector("svg").replaceChildren(...boxes, shape("line", { class: "picker-end", x1: end, x2: end, y1: 0, y2: 28 }));
    const words = shown.map(([name, title, size]) => make("span", { class: `picker-key picker-key-${name}` }, `${title} ${gb(size)}`));
    const left = total - sum;
    words.push(make("span", { class: "picker-key" }, left >= 0 ? `left ${gb(left)} of ${gb(total)}` : `${gb(-left)} more than the ${gb(total)} there are`));
    figure.querySelector("figcaption").replaceChildren(...words);
  }

  /** Draw what the memory is for: what others use, weights, drafter, working memory, KV cache. */
  function drawMemory(figure, judged) {
    const { machine, image } = judged;
    figure.hidden = !image.facts.capability || !machine.total;
    figure.classList.toggle("picker-unknown", Boolean(judged.refusal));
    if (figure.hidden || judged.refusal) return;
    drawBar(figure, [["used", "in use already", machine.total - machine.free], ...parts(judged)], machine.total);
  }

  let number = 0;
  /** Make an empty figure for a bar. */
  function memoryFigure() {
    number += 1;
    const svg = shape("svg", { viewBox: "0 0 1000 28", preserveAspectRatio: "none", role: "img", "aria-labelledby": `memory-${number}` });
    return make("figure", { class: "picker-memory" }, svg, make("figcaption", { id: `memory-${number}` }));
  }

  Object.assign(ImagePicker, { make, parts, drawBar, drawMemory, memoryFigure });
})();
