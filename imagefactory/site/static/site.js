// Search, filters and copy buttons. Everything else works without this file.
"use strict";
(() => {
  const root = document.documentElement.dataset.root;

  for (const button of document.querySelectorAll(".command .copy")) button.hidden = false;
  document.addEventListener("click", async ({ target: button }) => {
    if (!button.matches(".command .copy")) return;
    const code = button.closest(".command").querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // Pages opened as files may not write to the clipboard: leave the text selected for Ctrl-C.
      getSelection().selectAllChildren(code);
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });

  /** Sort a table by a column: numbers largest first, then the other way round. */
  for (const button of document.querySelectorAll("table.sortable .sort")) {
    const head = button.closest("th");
    button.disabled = false;
    button.addEventListener("click", () => {
      const body = head.closest("table").tBodies[0];
      const cell = (row) => row.cells[head.cellIndex];
      const numbers = Boolean(cell(body.rows[0])?.dataset.value);
      const before = head.getAttribute("aria-sort");
      const ascending = before ? before === "descending" : !numbers;
      const compare = (one, two) => (numbers ? cell(one).dataset.value - cell(two).dataset.value : cell(one).textContent.localeCompare(cell(two).textContent, "en", { numeric: true }));
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      body.append(...[...body.rows].sort((one, two) => (ascending ? compare(one, two) : compare(two, one))));
    });
  }

  for (const input of document.querySelectorAll("input[data-filter]")) {
    const rows = [...document.getElementById(input.dataset.filter).tBodies[0].rows];
    const count = document.querySelector(`[data-count="${input.dataset.filter}"]`);
    const texts = rows.map((row) => row.textContent.toLowerCase());
    input.disabled = false;
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, number) => {
        row.hidden = !words.every((word) => texts[number].includes(word));
        shown += row.hidden ? 0 : 1;
      });
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
    });
  }

  const search = document.getElementById("search");
  const list = document.getElementById("found");
  if (!search) return;
  let entries = [];
  let texts = [];
  let entered = false;
  /** Load what can be found when somebody is about to search. */
  const load = () => {
    const script = Object.assign(document.createElement("script"), { src: `${root}search-data.js` });
    script.addEventListener("load", () => {
      entries = window.searchData;
      texts = entries.map((entry) => entry.join(" ").toLowerCase());
      if (document.activeElement !== search) return;
      find();
      if (entered) openFirst();
    });
    document.head.append(script);
  };
  /** Open the first thing found; while the entries still load, as soon as they are there. */
  const openFirst = () => {
    entered = !entries.length;
    if (!list.hidden) list.querySelector("a").click();
  };
  const close = () => {
    entered = false;
    list.hidden = true;
  };
  /** Whether a text has a word that begins so: "coding" is not in "decoding". */
  const hasWord = (text, start) => {
    for (let at = text.indexOf(start); at >= 0; at = text.indexOf(start, at + 1)) {
      if (at === 0 || !/[a-z0-9]/.test(text[at - 1])) return true;
    }
    return false;
  };

  /** Take what a question on the home page asks for out of words: "coding 64k 100gb" is for coding, with both. */
  const asked = (words) => {
    const taken = { context: /^(\d+)k$/, free: /^(\d+)gb?$/ };
    const rest = words.filter((word) => !Object.values(taken).some((pattern) => pattern.test(word)));
    const given = Object.entries(taken).flatMap(([name, pattern]) => words.filter((word) => pattern.test(word)).map((word) => [name, pattern.exec(word)[1] * (name === "context" ? 1024 : 1)]));
    return [rest, given.length ? `&${new URLSearchParams(given)}` : ""];
  };

  const score = (number, all) => {
    const [kind, title] = entries[number];
    const words = kind === "question" ? asked(all)[0] : all;
    const name = title.toLowerCase();
    let total = { model: 4, "how to": 3, question: words.length < all.length ? 30 : 2 }[kind] ?? 0;
    for (const word of words) {
      if (!hasWord(texts[number], word)) return -1;
      total += name === word ? 20 : name.startsWith(word) ? 10 : hasWord(name, word) ? 5 : 1;
    }
    return total;
  };

  const link = ([kind, title, path, text], words) => {
    const [item, made] = ["li", "a"].map((tag) => document.createElement(tag));
    made.href = root + path + (kind === "question" ? asked(words)[1] : "");
    for (const [name, value] of [["kind", kind], ["title", title], ["text", text]]) {
      const part = document.createElement("span");
      part.className = name;
      part.textContent = value;
      made.append(part, " ");
    }
    item.append(made);
    return item;
  };

  const find = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!entries.length) return;
    const found = entries.map((_, number) => [score(number, words), number])
      .filter(([value]) => value >= 0)
      .sort((one, other) => other[0] - one[0] || one[1] - other[1])
      .slice(0, 12);
    const cve = words.find((word) => /^cve-\d/.test(word));
    const links = found.map(([, number]) => entries[number]);
    if (cve && !links.length) links.push(["CVE", cve.toUpperCase(), `vulnerabilities.html#q=${cve}`, "which images have it, or the package that it is about"]);
    list.replaceChildren(...links.map((entry) => link(entry, words)));
    if (!links.length) {
      const nothing = [["help", "Nothing found", "troubles.html", "Help lists tasks, symptoms and exit codes"], ["models", "All models", "index.html#models", "with a filter by use, context and licence"]];
      list.replaceChildren(...nothing.map((entry) => link(entry, words)));
    }
    list.hidden = !words.length;
  };

  search.disabled = false;
  search.addEventListener("input", () => {
    entered = false;
    find();
  });
  search.addEventListener("focus", load, { once: true });
  search.addEventListener("focus", find);
  search.addEventListener("keydown", (event) => event.key === "Enter" && openFirst());
  search.parentElement.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  search.parentElement.addEventListener("focusout", (event) => {
    if (!event.currentTarget.contains(event.relatedTarget)) close();
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(input|textarea|select)$/i.test(document.activeElement.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      search.focus();
    }
  });
})();
