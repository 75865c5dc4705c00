/* Draws starts: elements, commands, bars of memory; and keeps the answers of a form in the address. */
"use strict";
(() => {
  const gb = (bytes) => `${(bytes / 1e9).toFixed(1)} GB`;
  // The first toLocaleString() of a page loads a library: 50 ms, most of what a page computed.
  const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
  const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

  /** Make an element; text is never markup. */
  function make(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function shape(tag, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function terminal(text) {
    const button = make("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "Copy");
    return make("div", { class: "command" }, make("div", { class: "cap" }, make("span", {}, "Terminal"), button), make("pre", { tabindex: "0" }, make("code", {}, text)));
  }

  /** Make a figure that leads the eye: a large number, its unit, and what it is of. */
  const figure = (number, unit, ...words) => make("p", { class: "figure" }, make("b", {}, String(number)), ` ${unit} `, make("span", { class: "sub" }, ...words));

  /** Return the command of a start; the image's defaults are not repeated. */
  function command({ memory: needs, target, command: own }, fitted, { users = 1, port = "", withKey = false, withDisk = false, parser = "" } = {}) {
    const { before, setting, key, disk, after } = own ?? { ...startsData.build, before: startsData.build.before.replaceAll("TARGET", target) };
    const given = port && port !== "8000" ? [["PORT", port]] : [];
    if (parser) given.push(["ENABLE_AUTO_TOOL_CHOICE", 1], ["TOOL_CALL_PARSER", parser]);
    if (fitted) {
      if (fitted.context !== needs.context) given.push(["MAX_MODEL_LEN", fitted.context]);
      if (needs.users && users > needs.users) given.push(["MAX_NUM_SEQS", users]);
      if (fitted.share !== needs.share) given.push(["GPU_MEMORY_UTILIZATION", fitted.share]);
    }
    return before + given.map((pair) => setting.replace("SETTING", pair.join("="))).join("") + (withKey ? key : "") + (withDisk ? disk : "") + after;
  }

  /** Say why a start would be refused. */
  function refusal({ memory: needs }, { context, longest, fixed, most, whole }) {
    if (!longest) return `weights and working memory need ${gb(fixed)}, and ${gb(most * whole)} can be used`;
    if (context > needs.longest) return `the model’s context ends at ${count(needs.longest)} tokens`;
    return `${count(context)} tokens do not fit; up to ${count(longest)} do`;
  }

  /** Say how many users fit. */
  function verdict(image, fitted, users) {
    const each = `with ${count(fitted.context)} tokens each`;
    if (!fitted.users) return ["bad", `does not fit: ${refusal(image, fitted)}`];
    if (fitted.users < users) return ["care", `fits ${fitted.users} of ${plural(users, "user")} ${each}; others wait`];
    return ["good", `fits: room for ${plural(fitted.users, "user")} ${each}`];
  }

  let number = 0;
  /** Draw a bar of parts, each a class, a title and bytes, and the end of the memory; the caption has the figures. */
  function bar(parts, total) {
    number += 1;
    const shown = parts.filter(([, , size]) => size > 0);
    const sum = shown.reduce((before, [, , size]) => before + size, 0);
    const scale = 1000 / Math.max(total, sum);
    let x = 0;
    const boxes = shown.map(([name, , size]) => {
      x += size * scale;
      return shape("rect", { class: `picker-part-${name}`, x: (x - size * scale).toFixed(1), y: 0, width: Math.max(0, size * scale - 2).toFixed(1), height: 28 });
    });
    const end = (total * scale - 1).toFixed(1);
    const words = shown.map(([name, title, size]) => make("span", { class: `picker-key picker-key-${name}` }, `${title} ${gb(size)}`));
    const left = total - sum;
    words.push(make("span", { class: "picker-key" }, left >= 0 ? `left ${gb(left)} of ${gb(total)}` : `${gb(-left)} more than the ${gb(total)} there are`));
    const svg = { viewBox: "0 0 1000 28", preserveAspectRatio: "none", role: "img", "aria-labelledby": `memory-${number}` };
    return make("figure", { class: "picker-memory" }, shape("svg", svg, ...boxes, shape("line", { class: "picker-end", x1: end, x2: end, y1: 0, y2: 28 })), make("figcaption", { id: `memory-${number}` }, ...words));
  }

  /** Draw what the memory is for: what others use, weights, drafter, working memory, KV cache, the stage of KV_DISK. */
  function memoryBar({ memory: needs }, { taken, fixed, stage }, machine) {
    const cache = Math.max(0, taken - fixed);
    return bar([["used", "in use already", machine.total - machine.free], ["weights", "weights", needs.weights], ["drafter", "drafter", needs.drafter], ["working", "working memory", needs.working], ["cache", "KV cache", cache], ["stage", "on its way to the disk", stage]], machine.total);
  }

  /** Return a machine with so many GB left, as many as there are at most. */
  function machineOf(name, left) {
    const machine = startsData.machines.find((known) => known.name === name);
    return machine && left ? { ...machine, free: Math.min(Math.max(1, left * 1e9), machine.total) } : machine;
  }

  /** Keep a form's answers in the address, and draw when either changes; a link sets fields of the form, and no more. */
  function bind(form, draw) {
    const fields = form.elements;
    const linked = new Set(); // what a link chose, and the visitor did not change since
    function read() {
      form.reset();
      linked.clear();
      for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
        const field = fields.namedItem(name);
        if (field?.type === "checkbox") field.checked = value === field.value;
        else if (field?.tagName === "INPUT" || [...(field?.options ?? [])].some((option) => option.value === value)) field.value = value;
        else continue;
        linked.add(name);
      }
      draw(fields, linked);
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", ({ target }) => {
      linked.delete(target.name);
      draw(fields, linked);
    });
    form.addEventListener("change", () => {
      const answers = [...new FormData(form)].filter(([, value]) => value);
      history.replaceState(null, "", `#${new URLSearchParams(answers)}`);
    });
    addEventListener("hashchange", () => /^#\w+=/.test(location.hash) && read());
    for (const set of form.querySelectorAll("fieldset")) set.disabled = false;
    read();
  }

  globalThis.Drawing = { gb, count, plural, make, terminal, figure, command, refusal, verdict, bar, memoryBar, machineOf, bind };
})();
