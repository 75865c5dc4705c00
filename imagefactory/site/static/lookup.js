/* One box that answers what is typed, and shows nothing before: lookupData has the answers, and the links that they name. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const { make, plural, bind } = Drawing;
  const SHOWN = 5;
  const { answers, links } = lookupData;
  const [said, found, none] = ["said", "found", "none"].map((name) => document.getElementById(`lookup-${name}`));
  const texts = answers.map(({ title, names, more, lines }) => [title, ...names, more, ...lines.map(([text]) => text)].join(" ").toLowerCase());

  /** Return the words of a question; of a pasted reference, the tag or the digest. */
  const wordsOf = (typed) => typed.toLowerCase().split(/\s+/).filter(Boolean).map((word) => word.replace(/^.*@/, "").replace(/^.*\/[^/:]*:/, "").replace(/^sha256:/, ""));

  function line([text, numbers]) {
    const [, head, rest] = /^([^:]{1,40}: )(.*)$/s.exec(text) ?? ["", "", text];
    return make("li", {}, ...(head ? [make("strong", {}, head)] : []), rest, ...numbers.flatMap((number, place) => [place ? " · " : " ", make("a", { href: links[number][1] }, links[number][0])]));
  }

  const list = (lines) => make("ul", { class: "plain" }, ...lines.map(line));
  const folded = (title, inside, open) => make("details", open ? { open: "" } : {}, make("summary", {}, title), inside);

  /** Draw an answer; of several, only the first line is unfolded. */
  function card({ title, chip, kind, note, lines: [first, ...rest], more }, alone) {
    const sub = note ? [make("p", { class: "small soft" }, note)] : [];
    const parts = [...(rest.length ? [folded(plural(rest.length, "more line"), list(rest), alone)] : []), ...(more ? [folded("Digests", make("p", { class: "small" }, make("code", {}, more)))] : [])];
    return make("li", { class: "card" }, make("h2", {}, title, " ", make("span", { class: `chip ${kind}` }, chip)), ...sub, list([first]), ...parts);
  }

  bind(document.getElementById("lookup-form"), ({ q }) => {
    q.disabled = false;
    const words = wordsOf(q.value);
    const exact = answers.filter(({ names }) => names.some((name) => name.toLowerCase() === words.join(" ")));
    const matching = exact.length || !words.length ? exact : answers.filter((_, number) => words.every((word) => texts[number].includes(word)));
    const more = matching.length - SHOWN;
    found.replaceChildren(make("ol", { class: "answers" }, ...matching.slice(0, SHOWN).map((answer) => card(answer, matching.length === 1))));
    none.hidden = !words.length || matching.length > 0;
    said.textContent = more > 0 ? `${plural(matching.length, "answer")}; the first ${SHOWN} are here. Type more of it, such as a version or a day.` : matching.length ? plural(matching.length, "answer") : "";
  });
});
