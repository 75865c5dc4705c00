/* One box that answers what is typed, and shows and loads nothing before: lookupData has answers, and links that they name. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const { make, plural, bind } = Drawing;
  const [SHOWN, MANY] = [5, 10];
  const form = document.getElementById("lookup-form");
  const [said, found, none, idle] = ["said", "found", "none", "idle"].map((name) => document.getElementById(`lookup-${name}`));
  let texts = null; // of each answer; null until they are loaded

  const load = () => {
    if (form.dataset.asked) return;
    form.dataset.asked = "yes";
    const script = make("script", { src: form.dataset.answers });
    script.addEventListener("load", () => {
      texts = lookupData.answers.map(({ title, names, more, lines }) => [title, ...names, more, ...lines.map(([text]) => text)].join(" ").toLowerCase());
      draw(form.elements);
    });
    document.head.append(script);
  };

  /** Return the words of a question; of a pasted reference, the tag or the digits of the digest that Docker shows. */
  const wordsOf = (typed) => typed.toLowerCase().split(/\s+/).filter(Boolean).map((word) => word.replace(/^.*@(?=sha256:)/, "").replace(/^.*\/[^/:]*:/, "").replace(/^sha256:/, "").replace(/^([0-9a-f]{12})[0-9a-f]+$/, "$1"));

  const link = (number, text = lookupData.links[number][0]) => make("a", { href: lookupData.links[number][1] }, text);
  const headed = (text) => /^(.{1,40}?):(?: (.*))?$/s.exec(text)?.slice(1) ?? ["", text];

  function line([text, numbers]) {
    const [head, rest] = headed(text);
    return make("li", {}, ...(head ? [make("strong", {}, `${head}: `)] : []), rest ?? "", ...numbers.flatMap((number, place) => [place ? " · " : " ", link(number)]));
  }

  const list = (lines) => make("ul", { class: "plain" }, ...lines.map(line));
  const folded = (title, inside, open) => make("details", open ? { open: "" } : {}, make("summary", {}, title), inside);

  /** Draw an answer; of several, only the first line is unfolded. */
  function card({ title, page, chip, kind, names, lines: [first, ...rest], more }, alone) {
    const others = names.filter((name) => name !== title).join(" · ");
    const sub = others ? [make("p", { class: "small soft" }, others)] : [];
    const heads = rest.map(([text]) => headed(text)[0]).filter(Boolean);
    const about = heads.length && heads.length < MANY ? heads.join(", ") : plural(rest.length, "more line");
    const parts = [...(rest.length ? [folded(about, list(rest), alone)] : []), ...(more ? [folded("Digests", make("p", { class: "small" }, make("code", {}, more)))] : [])];
    return make("li", { class: "card" }, make("h2", {}, page === null ? title : link(page, title), " ", make("span", { class: `chip ${kind}` }, chip)), ...sub, list([first]), ...parts);
  }

  function draw({ q }) {
    const words = wordsOf(q.value);
    q.disabled = false;
    idle.hidden = words.length > 0;
    if (words.length && !texts) load();
    if (!texts) return;
    const exact = lookupData.answers.filter(({ names }) => names.some((name) => name.toLowerCase() === words.join(" ")));
    const matching = exact.length || !words.length ? exact : lookupData.answers.filter((_, number) => words.every((word) => texts[number].includes(word)));
    const more = matching.length - SHOWN;
    found.replaceChildren(make("ol", { class: "answers" }, ...matching.slice(0, SHOWN).map((answer) => card(answer, matching.length === 1))));
    none.hidden = !words.length || matching.length > 0;
    said.textContent = more > 0 ? `${plural(matching.length, "answer")}; the first ${SHOWN} are here. Type more of it, such as a version or a day.` : matching.length ? plural(matching.length, "answer") : "";
  }

  form.addEventListener("focusin", load);
  bind(form, draw);
});
