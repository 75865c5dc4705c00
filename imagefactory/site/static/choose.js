/* The question on the home page: five answers in, a ranked list out. The address holds the question. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const data = globalThis.chooseData;
  const { order, models } = data;
  const asked = new URLSearchParams(location.hash.slice(1));
  if (data.images.some(({ model }) => model === asked.get("model"))) { // the picker was here before pages of models had it
    location.replace(`models/${asked.get("model")}.html${location.hash}`);
    return;
  }
  const form = document.getElementById("choose-form");
  const list = document.getElementById("answers");
  if (!form) return;
  const { choose, dockerRun, given, bytes, grouped, make, drawMemory, memoryFigure } = ImagePicker;
  const SHOWN = 3;
  const fields = Object.fromEntries([...form.elements].filter(({ name }) => name).map((field) => [field.name, field]));
  const number = (value) => value.toLocaleString("en-US");
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  function machine() {
    const found = { ...data.machines.find(({ name }) => name === fields.machine.value) };
    const free = bytes(fields.free.value);
    if (free !== null) found.free = Math.min(free, found.total);
    return found;
  }

  function speed(model, { gpu }, users) {
    const { speeds, measured } = models[model];
    if (measured) return measured;
    const rows = (speeds[gpu] ?? []).filter((row) => row.users <= users);
    const row = rows.at(-1) ?? speeds[gpu]?.[0];
    if (!row) return "not measured";
    const rate = [...new Set([row.slowest, row.fastest])].map((one) => Math.round(one)).join(" to ");
    return `${rate} tokens/s for ${plural(row.users, "user")}, published: ${row.sources.join("; ")}`;
  }

  const fact = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));

  function terminal(text) {
    const button = make("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "Copy");
    return make("div", { class: "command" }, make("div", { class: "cap" }, make("span", {}, "Terminal"), button), make("pre", { tabindex: "0" }, make("code", {}, text)));
  }

  /** Write the one command: of the published image, else of a checkout. */
  function command({ judged, given: settings }) {
    const { image } = judged;
    if (["current", "update waiting"].includes(image.state)) return dockerRun(image, { ...settings, ...ImagePicker.head(image) });
    const set = Object.entries(settings).map(([name, value]) => ` --set ${name}=${value}`).join("");
    return `./inv build --target ${image.target}\n./inv run --target ${image.target}${set}`;
  }

  const reason = ({ judged: { refusal, findings } }) => {
    const { detail, what, remedy } = refusal ?? findings.find(({ result }) => result === "fail");
    return grouped(`${detail ?? what}. ${remedy}`);
  };

  /** Return the address of the settings on the page of a model. */
  function settingsOf({ model, judged: { image }, given: settings }, free) {
    const words = { model, machine: image.machine, version: image.release, ...(free ? { free } : {}), ...given(image, settings) };
    return `models/${model}.html#${new URLSearchParams(words)}`;
  }

  function answer(start, place, question, first) {
    const { model, judged, room } = start;
    const about = models[model];
    const length = ImagePicker.budget(judged).asked;
    const all = room >= question.users;
    const fits = all ? `fits: room for ${plural(room, "user")} with ${number(length)} tokens each` : `fits ${room} of ${plural(question.users, "user")} with ${number(length)} tokens each; others wait`;
    const figure = memoryFigure();
    drawMemory(figure, judged);
    const links = make("p", { class: "small" }, make("a", { href: settingsOf(start, fields.free.value) }, "Change settings"), " · ", make("a", { href: `models/${model}.html` }, `About ${model}`));
    if (first && first !== model) links.append(" · ", make("a", { href: `compare.html?one=${first}&two=${model}` }, `Compare with ${first}`));
    const box = make("details", {}, make("summary", {}, "Command"), terminal(command(start)), links);
    box.open = place === 1;
    return make("li", { class: "card" },
      make("h3", {}, make("a", { href: `models/${model}.html` }, model), " ", make("span", { class: `chip ${all ? "good" : "care"}` }, fits), ...(about.remark ? [" ", make("span", { class: "chip care" }, about.remark)] : [])),
      figure,
      make("dl", { class: "facts" }, fact("speed", speed(model, question.machine, question.users)), fact("quality", about.quality.join("; ") || "not measured"), fact("drafter", about.drafter || "none"), fact("licence of the weights", about.licence || "see its card"), fact("download", about.download)),
      box);
  }

  const refused = (start) => make("li", {}, make("a", { href: `models/${start.model}.html` }, start.model), `: ${reason(start)}`);

  /** Make a fold whose items are drawn when it is opened. */
  function folded(title, starts, item, inside) {
    const box = make("details", { class: "more" }, make("summary", {}, title), inside);
    box.addEventListener("toggle", () => inside.replaceChildren(...starts.map(item)));
    return starts.length ? [box] : [];
  }

  function draw() {
    const question = { use: fields.for.value, machine: machine(), context: Number(fields.context.value), users: Number(fields.users.value) };
    const unread = fields.free.value.trim() && bytes(fields.free.value) === null;
    fields.free.setAttribute("aria-invalid", Boolean(unread));
    fields.free.placeholder = (question.machine.free / 1e9).toFixed(1);
    const found = choose(data, order, question);
    const starts = found.filter(({ room }) => room);
    const first = starts[0]?.model;
    const card = (start, place) => answer(start, place + 1, question, first);
    const bad = found.filter(({ room }) => !room);
    const more = starts.slice(SHOWN);
    let words = `${starts.length} of ${plural(found.length, "model")} for ${question.use} fit on ${question.machine.title}; best first.`;
    if (!found.length) words = `No model for ${question.use} has an image for ${question.machine.title}.`;
    if (unread) words = `${fields.free.value} is not an amount of memory: write GB, such as 100 or 100 GB.`;
    document.getElementById("choose-said").textContent = words;
    list.replaceChildren(
      ...(unread ? [] : [make("ol", { class: "answers" }, ...starts.slice(0, SHOWN).map(card)),
        ...folded(`${plural(more.length, "more model")} that ${more.length === 1 ? "fits" : "fit"}`, more, (start, place) => card(start, place + SHOWN), make("ol", { class: "answers" })),
        ...folded(`${plural(bad.length, "model")} that would not start, and why`, bad, refused, make("ul", { class: "plain" }))]));
  }

  function commit() {
    draw();
    const words = Object.entries(fields).map(([name, { value }]) => [name, value.trim()]);
    history.replaceState(null, "", `#${new URLSearchParams(words.filter(([, value]) => value))}`);
  }

  function readAddress() {
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      const field = fields[name];
      if (field && (field.tagName === "INPUT" || [...field.options].some((option) => option.value === value))) field.value = value;
    }
    draw();
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", draw);
  form.addEventListener("change", commit);
  addEventListener("hashchange", () => /^#\w+=/.test(location.hash) && readAddress());
  form.querySelector("fieldset").disabled = false;
  readAddress();
});
