/* The question on the home page: five answers in, a ranked list out. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("choose-form");
  if (!form) return;
  const { plural, make, terminal, command, refusal, verdict, memoryBar, machineOf, bind } = Drawing;
  const SHOWN = 3;

  function speed(model, { gpu }, users) {
    const { speeds, measured } = startsData.models[model];
    if (measured) return measured;
    const row = (speeds[gpu] ?? []).findLast((figure) => figure.users <= users) ?? speeds[gpu]?.[0];
    if (!row) return "not measured";
    const rate = [...new Set([row.slowest, row.fastest].map(Math.round))].join(" to ");
    return `${rate} tokens/s for ${plural(row.users, "user")}, published: ${row.sources.join("; ")}`;
  }

  const fact = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
  const page = ({ model }) => make("a", { href: `models/${model}.html` }, model);

  function answer({ image, fitted }, { machine, users, address }, first, open) {
    const { model } = image;
    const about = startsData.models[model];
    const [kind, fits] = verdict(image, fitted, users);
    const links = make("p", { class: "small" }, make("a", { href: `models/${model}.html#${new URLSearchParams({ image: image.slug, ...address })}` }, "Change settings"), " · ", make("a", { href: `models/${model}.html` }, `About ${model}`));
    if (first !== model) links.append(" · ", make("a", { href: `compare.html?one=${first}&two=${model}` }, `Compare with ${first}`));
    const box = make("details", {}, make("summary", {}, "Command"), terminal(command(image, fitted, { users })), links);
    box.open = open;
    return make("li", { class: "card" },
      make("h3", {}, page(image), " ", make("span", { class: `chip ${kind}` }, fits), ...(about.remark ? [" ", make("span", { class: "chip care" }, about.remark)] : [])),
      memoryBar(image, fitted, machine),
      make("dl", { class: "facts" }, fact("speed", speed(model, machine, users)), fact("quality", about.quality.join("; ") || "not measured"), fact("drafter", about.drafter || "none"), fact("licence of the weights", about.licence || "see its card"), fact("download", about.download)),
      box);
  }

  /** Make a fold whose items are drawn when it is opened. */
  function folded(title, starts, item, inside) {
    const box = make("details", { class: "more" }, make("summary", {}, title), inside);
    box.addEventListener("toggle", () => inside.replaceChildren(...starts.map(item)));
    return starts.length ? [box] : [];
  }

  bind(form, (fields) => {
    const [free, context, users] = [fields.free, fields.context, fields.users].map(({ value }) => Number(value));
    const machine = machineOf(fields.machine.value, free);
    const address = Object.fromEntries(Object.entries({ free, context, users }).filter(([, value]) => value));
    const question = { use: fields.for.value, machine, context, users, address };
    fields.free.placeholder = (machine.free / 1e9).toFixed(1);
    const starts = Memory.choose(question);
    const fitting = starts.filter(({ fitted }) => fitted.users);
    const refused = starts.filter(({ fitted }) => !fitted.users);
    const more = fitting.slice(SHOWN);
    const card = (start, place) => answer(start, question, fitting[0].image.model, place === 0);
    const none = `No model for ${question.use} has an image for ${machine.title}.`;
    document.getElementById("choose-said").textContent = starts.length ? `${fitting.length} of ${plural(starts.length, "model")} for ${question.use} fit on ${machine.title}; best first.` : none;
    document.getElementById("answers").replaceChildren(
      make("ol", { class: "answers" }, ...fitting.slice(0, SHOWN).map(card)),
      ...folded(`${plural(more.length, "more model")} that ${more.length === 1 ? "fits" : "fit"}`, more, (start) => card(start), make("ol", { class: "answers" })),
      ...folded(`${plural(refused.length, "model")} that would not start, and why`, refused, ({ image, fitted }) => make("li", {}, page(image), `: ${refusal(image, fitted)}`), make("ul", { class: "plain" })));
  });
});
