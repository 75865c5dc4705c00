/* The question on the home page: five answers in, a list in a named order out. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("choose-form");
  if (!form) return;
  const { gb, count, plural, make, terminal, command, figure, refusal, verdict, memoryBar, machineOf, bind } = Drawing;
  const SHOWN = 3;

  /** Return the figure of a model's speed, and where it is from. */
  function speed(model, { gpu }, users) {
    const { speeds, measured } = startsData.models[model];
    if (measured) return [figure(Math.round(measured.tokens_per_second), "tokens/s", `measured here on ${measured.machine}`), []];
    const row = (speeds[gpu] ?? []).findLast((known) => known.users <= users) ?? speeds[gpu]?.[0];
    if (!row) return [figure("–", "tokens/s", "nobody published its speed here"), []];
    const rate = [...new Set([row.slowest, row.fastest].map(Math.round))].join("–");
    const reports = row.sources.length === 1 ? make("span", { class: "chip care" }, "one report") : `${row.sources.length} reports`;
    return [figure(rate, `tokens/s for ${plural(row.users, "user")}${row.otherwise && `, ${row.otherwise}`}`, reports), row.sources];
  }

  const page = ({ model }) => make("a", { href: `models/${model}.html` }, model);

  function answer({ image, fitted }, { machine, users, address }, first, open) {
    const { model } = image;
    const about = startsData.models[model];
    const [kind, fits] = verdict(image, fitted, users);
    const [rate, sources] = speed(model, machine, users);
    const links = make("p", { class: "small" }, make("a", { href: `models/${model}.html#${new URLSearchParams({ image: image.slug, ...address })}` }, "Change settings"), " · ", make("a", { href: `models/${model}.html` }, `About ${model}`));
    if (first !== model) links.append(" · ", make("a", { href: `compare.html?one=${first}&two=${model}` }, `Compare with ${first}`));
    const box = make("details", {}, make("summary", {}, "Command"), terminal(command(image, fitted, { users })), links);
    box.open = open;
    const facts = [about.download && `${about.download} of weights to download`, `licence: ${about.licence || "see its card"}`, about.drafter ? `drafts with ${about.drafter}` : "no drafter", `quality: ${about.quality.join("; ") || "not measured"}`];
    return make("li", { class: "card" },
      make("h2", {}, page(image), ...(about.remark ? [" ", make("span", { class: "chip care" }, about.remark)] : [])),
      make("div", { class: "figures" }, rate, figure(`${Math.round((fitted.taken + fitted.beside) / 1e9)} GB`, `of ${Math.floor(machine.total / 1e9)} GB`)),
      memoryBar(image, fitted, machine),
      make("p", { class: "small" }, make("span", { class: `chip ${kind}` }, fits)),
      box,
      make("p", { class: "source" }, facts.filter(Boolean).join(" · "), ...(sources.length ? [make("br"), `Speed: ${sources.join("; ")}`] : [])));
  }

  /** Make a fold whose items are drawn when it is opened. */
  function folded(title, starts, item, inside) {
    const box = make("details", { class: "more" }, make("summary", {}, title), inside);
    box.addEventListener("toggle", () => inside.replaceChildren(...starts.map(item)));
    return starts.length ? [box] : [];
  }

  /** Say how many fit and in which order they stand; if none does, what would. */
  function said({ use, machine }, fitting, refused) {
    const all = fitting.length + refused.length;
    if (!all) return `No model for “${use}” has an image for ${machine.title}. Choose another machine or use, or see all models below.`;
    if (fitting.length) return `${fitting.length} of ${plural(all, "model")} for “${use}” fit on ${machine.title}: ${startsData.ordered[use]}.`;
    const none = `None of ${plural(all, "model")} for “${use}” fits: ${gb(machine.free)} are free`;
    const [shorter] = refused.filter(({ fitted }) => fitted.longest).toSorted((one, two) => two.fitted.longest - one.fitted.longest);
    if (shorter) return `${none}. Ask for a shorter context: ${shorter.image.model} fits with up to ${count(shorter.fitted.longest)} tokens.`;
    const [{ image, fitted }] = refused.toSorted((one, two) => one.fitted.fixed - two.fitted.fixed);
    return `${none}, and ${image.model}, the smallest, needs ${gb(fitted.fixed)} before any context. Free some memory, or choose another use or machine.`;
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
    document.getElementById("choose-said").textContent = said(question, fitting, refused);
    document.getElementById("answers").replaceChildren(
      make("ol", { class: "answers" }, ...fitting.slice(0, SHOWN).map(card)),
      ...folded(`${plural(more.length, "more model")} that ${more.length === 1 ? "fits" : "fit"}`, more, (start) => card(start), make("ol", { class: "answers" })),
      ...folded(`${plural(refused.length, "model")} that would not start, and why`, refused, ({ image, fitted }) => make("li", {}, page(image), `: ${refusal(image, fitted)}`), make("ul", { class: "plain" })));
  });
});
