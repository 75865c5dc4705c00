/* Compares two models or images by the JSON beside their pages. The address names both: ?one=…&two=… */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const { gb, count, make, terminal, bar, machineOf } = Drawing;
  const form = document.getElementById("compare-form");
  const place = document.getElementById("compared");
  const said = document.getElementById("compare-said");
  const names = ["one", "two"];
  const size = (bytes) => {
    if (!bytes) return "unknown";
    const unit = ["B", "kB", "MB", "GB"].findLast((_, power) => bytes >= 1000 ** power) ?? "B";
    return `${(bytes / 1000 ** ["B", "kB", "MB", "GB"].indexOf(unit)).toFixed(unit === "B" ? 0 : 1)} ${unit}`;
  };
  const sum = (layers) => layers.reduce((total, { bytes }) => total + (bytes ?? 0), 0);

  async function get(path) {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  }

  /** Return all that is known about one side. */
  async function side(name) {
    const option = form.elements.one.querySelector(`option[value="${CSS.escape(name)}"]`);
    const image = await get(`images/${option.dataset.image ?? name}.json`);
    const [model, packages] = await Promise.all([get(`models/${image.model}.json`), get(`packages/${image.packages}.json`)]);
    const target = image.target.replace(/\/[^/]*$/, "");
    const start = startsData.images.find(({ slug }) => slug === image.slug);
    return { name, image, model, packages, target, start, machine: machineOf(start.machine) };
  }

  const published = ({ model: { speeds }, machine }, sourced = true) => {
    const rows = (speeds[machine?.gpu] ?? []).map(({ users, slowest, fastest, sources, otherwise }) => `${[...new Set([slowest, fastest])].map(Math.round).join(" to ")} tokens/s for ${users === 1 ? "one user" : `${users} users`}${otherwise && ` ${otherwise}`}${sourced ? ` (${sources.join("; ")})` : ""}`);
    return rows.join("; ") || "not measured";
  };
  const measured = ({ model, image }) => model.measured.filter((one) => one.target === image.target && one.complete).map((one) => `${one.tokens_per_second} tokens/s, ${one.profile}, ${one.machine}, ${one.date}`).join("; ") || "not measured";
  const takes = ({ taken, beside: more }) => taken + more;

  const FACTS = {
    model: ({ model }) => model.repo ?? model.name,
    weights: ({ model }) => model.weights,
    "licence of the weights": ({ model }) => model.licence ?? "see its card",
    "good for": ({ model }) => model.badges.join(", "),
    server: ({ image }) => image.runs,
    machine: ({ image }) => image.gpu,
    "made of": ({ image }) => `${image.base}, Python ${image.python}, ${image.kernels_from}`,
    "to pull": ({ image }) => size(image.bytes),
    "context served": ({ start }) => (start.memory ? count(start.memory.context) : "unknown"),
    "memory it takes": ({ start: { memory }, machine }) => (memory ? size(takes(Memory.fit(memory, machine))) : "not computed"),
    drafter: ({ image }) => image.environment.DFLASH_DRAFTER ?? "none",
    "speed, measured by this project": measured,
    "speed, published by others": published,
    "quality, published by others": ({ model }) => model.quality.join("; ") || "not measured",
    answers: ({ image }) => image.answers,
    "smoke tests": ({ image }) => image.tested,
    kernels: ({ image }) => image.audit_summary,
    state: ({ image }) => image.state,
    digest: ({ image }) => image.published_digest ?? image.digest ?? "not built",
  };

  function faults({ image, model, start }) {
    const kernels = image.kernels.filter(({ outcome }) => outcome === "fails").map(({ library, why }) => `${library}: ${why}`);
    const held = image.history.filter(({ held: back }) => back).map(({ digest, date }) => `${digest.slice(0, 19)} of ${date} is held back after a rollback`);
    return [...(model.remark ? [model.remark] : []), ...image.faults, ...start.warnings, ...kernels, ...held, ...image.problems];
  }

  const items = (texts, none) => (texts.length ? make("ul", { class: "plain" }, ...texts.map((text) => make("li", {}, text))) : make("span", { class: "soft" }, none));

  function table(label, head, rows) {
    const line = ([title, ...cells]) => make("tr", {}, make("th", { scope: "row" }, title), ...cells.map((cell) => make("td", {}, cell)));
    return make("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" },
      make("table", { class: "compact prose" }, make("thead", {}, make("tr", {}, ...head.map((title) => make("th", { scope: "col" }, title)))), make("tbody", {}, ...rows.map(line))));
  }

  const section = (title, ...children) => make("section", {}, make("h2", {}, title), ...children);
  const folded = (title, ...children) => make("details", {}, make("summary", {}, title), ...children);

  function speed(one, two) {
    const rows = one.image.compared.filter(({ other }) => other === two.image.target);
    if (!rows.length) {
      const command = `./inv bench.compare ${one.target} ${two.target}`;
      const known = one.image.model === two.image.model ? [] : [items([one, two].map((from) => `${from.name}, published by others: ${published(from, false)}`), "")];
      return section("Which is faster?", ...known, make("p", {}, "Not measured here: no recorded results of the two are of the same machine, profile and settings. To measure both in turn:"), terminal(command));
    }
    return section("Which is faster?", table("Speed", ["measured", one.target, two.target, "two / one", "says"], rows.map(({ profile, machine, dates, tokens_per_second: rates, ratio, verdict }) => [
      `${profile}, ${machine}, ${[...new Set(dates)].join(" and ")}`, ...rates.map((rate) => `${rate} tokens/s`), ratio ? `${ratio[0]} (95 %: ${ratio[1]} to ${ratio[2]})` : "one repeat", verdict])));
  }

  /** Say whether both run on one machine, with the settings that make them. */
  function beside(one, two) {
    const { machine } = one;
    const sides = [one, two];
    const needs = sides.map(({ start }) => start.memory);
    if (machine?.name !== two.machine?.name || !needs.every(Boolean)) return [];
    if (one.start.pair) return [section("Do both run on one machine?", make("p", {}, "No: each needs two machines."))];
    const fits = (both) => Memory.together(...both, machine) ?? Memory.together(...both.toReversed(), machine)?.toReversed();
    const shorter = (context) => needs.map((need) => ({ ...need, context: Math.min(need.context, context) }));
    const contexts = [Infinity, ...Array.from({ length: 8 }, (_, power) => 2 ** (18 - power))]; // the images' own, then 256K to 2K
    const context = contexts.find((length) => fits(shorter(length)));
    const parts = (amounts, spare) => bar([["used", ...spare], ...amounts.map((bytes, number) => [["weights", "cache"][number], sides[number].target, bytes])], machine.total);
    if (!context) {
      const least = shorter(2048).map((need) => Memory.fit(need, machine)).map(({ fixed, each, beside: more }) => fixed + each + more);
      const kept = machine.unified ? startsData.reserves.host : machine.total - machine.free;
      const both = least[0] + least[1];
      return [section("Do both run on one machine?", make("p", {}, make("strong", {}, "No"), `, on ${machine.title}, whatever their context: with one user and 2,048 tokens each, they need ${gb(least[0])} + ${gb(least[1])} = ${gb(both)}, and ${gb(machine.total - kept)} can be used. One of them has to be smaller by ${gb(both - machine.total + kept)}.`), parts(least, ["kept for the host", kept]))];
    }
    const starts = fits(shorter(context));
    const given = starts.map(({ share, context: length }, number) => `${sides[number].target}: GPU_MEMORY_UTILIZATION=${share}${length < needs[number].context ? `, MAX_MODEL_LEN=${length}` : ""}${number ? ", PORT=8001" : ""}`);
    const answer = context === Infinity ? [make("strong", {}, "Yes"), `, on ${machine.title}, with these shares of the memory`] : [make("strong", {}, "Not with their own contexts"), ` on ${machine.title}, but with ${count(context)} tokens at most`];
    return [section("Do both run on one machine?", make("p", {}, ...answer, "; the host keeps what it needs. Start the second when the first is ready."), parts(starts.map(takes), ["in use already", machine.total - machine.free]), items(given, ""))];
  }

  function layers(one, two) {
    const lacks = (from, other) => from.image.layers.filter(({ key }) => !other.image.layers.some((layer) => layer.key === key));
    const [gone, added] = [lacks(one, two), lacks(two, one)];
    const names = (list) => items(list.map(({ kind, name, bytes }) => `${kind} ${name}: ${size(bytes)}`), "none");
    const pull = (bytes, name) => `${bytes ? size(bytes) : "nothing"} to pull for ${name} if you have the other`;
    return section("Layers that change", make("p", {}, `${pull(sum(added), two.name)}; ${pull(sum(gone), one.name)}. ${two.image.layers.length - added.length} layers are in both.`),
      folded(`${gone.length + added.length} layers`, table("Layers", ["layers", one.name, two.name], [["only in", names(gone), names(added)]])));
  }

  function packages(one, two) {
    const byName = ({ packages: { packages: all } }) => new Map(all.map((part) => [`${part.kind} ${part.name}`, part]));
    const [left, right] = [byName(one), byName(two)];
    const words = (part) => (part ? `${part.version} (${part.licence})` : "none");
    const rows = [...new Set([...left.keys(), ...right.keys()])].filter((name) => words(left.get(name)) !== words(right.get(name))).sort().map((name) => [name, words(left.get(name)), words(right.get(name))]);
    const title = `${rows.length} of ${left.size} and ${right.size} packages differ, with their licences`;
    return section("Packages and licences", rows.length ? folded(title, table("Packages", ["package", one.name, two.name], rows)) : make("p", {}, "The same packages."));
  }

  function differing(one, two) {
    const [left, right] = [one, two].map(({ image }) => image.environment);
    const settings = [...new Set([...Object.keys(left), ...Object.keys(right)])].filter((name) => left[name] !== right[name]).sort();
    const lists = { mods: ({ image }) => image.mods, kernels: ({ image }) => image.kernels.map(({ library, outcome }) => `${library}: ${outcome}`) };
    const only = ([title, list]) => {
      const [ours, theirs] = [list(one), list(two)];
      const [gone, added] = [ours.filter((text) => !theirs.includes(text)), theirs.filter((text) => !ours.includes(text))];
      return [`${title} only in`, items(gone, "none"), items(added, "none")];
    };
    return [
      section("Settings", settings.length ? table("Settings", ["default of", one.name, two.name], settings.map((name) => [name, left[name] ?? "unset", right[name] ?? "unset"])) : make("p", {}, "The same defaults.")),
      section("Mods and kernels", Object.values(lists).every((list) => String(list(one)) === String(list(two))) ? make("p", {}, "The same.") : table("Mods and kernels", ["part", one.name, two.name], Object.entries(lists).map(only))),
      section("Known faults", faults(one).length || faults(two).length ? table("Known faults", ["faults", one.name, two.name], [["known", items(faults(one), "none known"), items(faults(two), "none known")]]) : make("p", {}, "None known.")),
    ];
  }

  let asked = 0;
  async function draw() {
    const [first, second] = names.map((name) => form.elements[name].value);
    asked += 1;
    const mine = asked;
    let sides;
    try {
      sides = await Promise.all([side(first), side(second)]);
    } catch (problem) {
      if (mine === asked) said.textContent = location.protocol === "file:" ? "This page reads JSON, which browsers refuse in a folder: ./inv site --serve shows the site." : `Could not be read: ${problem.message}`;
      return;
    }
    if (mine !== asked) return;
    const [one, two] = sides;
    const rows = Object.entries(FACTS).map(([title, words]) => [title, words(one), words(two)]);
    const same = rows.filter(([, left, right]) => left === right);
    const other = rows.filter(([, left, right]) => left !== right);
    const links = (from) => make("span", {}, make("a", { href: `images/${from.image.slug}.html` }, from.name));
    said.textContent = `${first} and ${second} differ in ${other.length} of ${rows.length} facts.`;
    place.replaceChildren(
      ...(one.image.model === two.image.model ? [] : beside(one, two)), speed(one, two),
      section("What differs", other.length ? table("What differs", ["fact", links(one), links(two)], other) : make("p", {}, "Nothing of this."), ...(same.length ? [folded(`${same.length} facts are the same`, table("What is the same", ["fact", "both"], same.map(([title, left]) => [title, left])))] : [])),
      layers(one, two), packages(one, two), ...differing(one, two));
  }

  function readAddress() {
    const wanted = new URLSearchParams(location.search);
    const offered = [...form.elements.one.options].map((option) => option.value);
    names.forEach((name) => {
      form.elements[name].disabled = false;
      form.elements[name].value = offered.includes(wanted.get(name)) ? wanted.get(name) : offered.find((other) => name === "one" || other !== form.elements.one.value) ?? offered[0];
    });
    const unknown = names.map((name) => wanted.get(name)).filter((name) => name && !offered.includes(name));
    if (unknown.length) said.textContent = `There is no ${unknown.join(" and no ")} here any more.`;
    else draw();
  }

  form.addEventListener("change", () => {
    history.pushState(null, "", `?${new URLSearchParams(names.map((name) => [name, form.elements[name].value]))}`);
    draw();
  });
  addEventListener("popstate", readAddress);
  readAddress();
});
