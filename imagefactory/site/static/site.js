// Search, filters and copy buttons. Everything else works without this file.
"use strict";
(() => {
  const root = document.documentElement.dataset.root;

  for (const button of document.querySelectorAll(".command .copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
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
  const entries = window.searchData || [];
  if (!entries.length) return;
  const texts = entries.map((entry) => entry.join(" ").toLowerCase());
  let chosen = -1;

  const score = (number, words) => {
    const [kind, title] = entries[number];
    const name = title.toLowerCase();
    let total = kind === "model" ? 4 : 0;
    for (const word of words) {
      if (!texts[number].includes(word)) return -1;
      total += name === word ? 20 : name.startsWith(word) ? 10 : name.includes(word) ? 5 : 1;
    }
    return total;
  };

  const close = () => {
    list.hidden = true;
    chosen = -1;
    search.setAttribute("aria-expanded", "false");
    search.removeAttribute("aria-activedescendant");
  };

  const choose = (number) => {
    const items = [...list.querySelectorAll("[role=option]")];
    if (!items.length) return;
    chosen = (number + items.length) % items.length;
    items.forEach((item, index) => item.setAttribute("aria-selected", String(index === chosen)));
    search.setAttribute("aria-activedescendant", items[chosen].id);
    items[chosen].scrollIntoView({ block: "nearest" });
  };

  const find = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return close();
    const found = entries.map((_, number) => [score(number, words), number])
      .filter(([value]) => value >= 0)
      .sort((one, other) => other[0] - one[0] || one[1] - other[1])
      .slice(0, 12);
    list.replaceChildren(...found.map(([, number], index) => {
      const [kind, title, path, text] = entries[number];
      const item = document.createElement("li");
      item.id = `found-${index}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      item.dataset.path = path;
      for (const [name, value] of [["kind", kind], ["title", title], ["text", text]]) {
        const part = document.createElement("span");
        part.className = name;
        part.textContent = value;
        item.append(part, " ");
      }
      return item;
    }));
    if (!found.length) {
      const item = document.createElement("li");
      item.className = "nothing";
      item.setAttribute("role", "option");
      item.setAttribute("aria-disabled", "true");
      item.textContent = "Nothing found";
      list.append(item);
    }
    list.hidden = false;
    search.setAttribute("aria-expanded", "true");
    chosen = -1;
  };

  const go = (item) => { if (item && item.dataset.path) location.href = root + item.dataset.path; };

  search.disabled = false;
  search.addEventListener("input", find);
  search.addEventListener("focus", find);
  search.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Enter") go(list.querySelectorAll("[role=option]")[Math.max(chosen, 0)]);
    else if (event.key === "Escape") { search.value = ""; close(); }
    else return;
    event.preventDefault();
  });
  search.addEventListener("blur", () => setTimeout(close, 150));
  list.addEventListener("mousedown", (event) => {
    event.preventDefault();
    go(event.target.closest("[role=option]"));
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(input|textarea|select)$/i.test(document.activeElement.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      search.focus();
    }
  });
})();
